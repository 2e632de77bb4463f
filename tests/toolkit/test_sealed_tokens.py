"""Words that a client carries: whole, ours, or nothing."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from comity.toolkit.sealed_tokens import MAX_LENGTH, seal_token, unseal_token
from tests.support.cases import loop_over

KEY, OTHER = b"k" * 32, b"o" * 32
words = st.lists(st.text(max_size=20), max_size=4)
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/= \n.é"


@given(words)
def test_sealed_words_come_back(said: list[str]) -> None:
    assert unseal_token(KEY, seal_token(KEY, *said)) == tuple(said)


@given(words)
def test_words_under_another_key_are_nobodys(said: list[str]) -> None:
    assert unseal_token(OTHER, seal_token(KEY, *said)) is None


@given(words, st.data())
def test_any_changed_character_is_refused(said: list[str], data: st.DataObject) -> None:
    sealed = seal_token(KEY, *said)
    place = data.draw(st.integers(0, len(sealed) - 1))
    other = data.draw(st.sampled_from([char for char in _ALPHABET if char != sealed[place]]))
    assert unseal_token(KEY, sealed[:place] + other + sealed[place + 1 :]) is None


@loop_over("said", [("a",), ("ab",), ("abc",)])
def test_no_other_spelling_of_the_same_bytes_is_taken(said: tuple[str, ...]) -> None:
    """The last character before the padding has bits that mean nothing."""
    sealed = seal_token(KEY, *said)
    last = len(sealed.rstrip("=")) - 1
    for char in _ALPHABET[:64]:
        if char != sealed[last]:
            assert unseal_token(KEY, sealed[:last] + char + sealed[last + 1 :]) is None
    assert unseal_token(KEY, sealed + "=") is None
    assert unseal_token(KEY, sealed.rstrip("=") + "====") is None


@given(words, st.data())
def test_a_part_or_more_than_the_whole_is_refused(said: list[str], data: st.DataObject) -> None:
    sealed = seal_token(KEY, *said)
    cut = data.draw(st.integers(0, len(sealed) - 1))
    assert unseal_token(KEY, sealed[:cut]) is None
    assert unseal_token(KEY, sealed + sealed[cut:]) is None


@given(st.text(max_size=200))
def test_a_strangers_text_is_refused_and_never_raises(text: str) -> None:
    assert unseal_token(KEY, text) is None


def test_words_signed_by_nobody_are_refused() -> None:
    assert unseal_token(KEY, base64.urlsafe_b64encode(b"\0" * 32 + b'["a"]').decode()) is None


def test_what_is_longer_than_any_seal_is_not_even_read() -> None:
    sealed = seal_token(KEY, "w" * MAX_LENGTH)
    assert len(sealed) > MAX_LENGTH
    assert unseal_token(KEY, sealed) is None
