"""Links to asks: only ours, for one ask, one party and a time; and signatures of posts."""

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.ask_links import Link, Links, signature
from comity.rules.seals import seal

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=10)
LINKS = Links(b"a pepper that every node has")
LINK = Link("ask-1", "person:ana@example.org", LATER, "key:abc")


def test_a_link_comes_back_as_it_was_made_on_any_node_with_the_pepper() -> None:
    token = LINKS.seal(LINK)
    assert Links(b"a pepper that every node has").unseal(token, "ask-1", NOW) == LINK


def test_a_link_is_good_for_its_own_ask_alone() -> None:
    assert LINKS.unseal(LINKS.seal(LINK), "ask-2", NOW) is None


def test_a_link_ends_at_its_time() -> None:
    assert LINKS.unseal(LINKS.seal(LINK), "ask-1", LATER) is None


def test_a_link_of_another_pepper_is_nobodys() -> None:
    assert LINKS.unseal(Links(b"another").seal(LINK), "ask-1", NOW) is None


@given(st.data())
def test_a_link_that_was_changed_anywhere_is_refused(data: st.DataObject) -> None:
    token = LINKS.seal(LINK)
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABab01-_").filter(lambda each: each != token[place]))
    assert LINKS.unseal(token[:place] + letter + token[place + 1 :], "ask-1", NOW) is None


@given(st.text(max_size=200))
def test_whatever_else_is_shown_is_no_link(token: str) -> None:
    assert LINKS.unseal(token, "ask-1", NOW) is None


@pytest.mark.parametrize("key", [b"a pepper that every node has"])
def test_what_was_sealed_for_another_purpose_is_no_link(key: bytes) -> None:
    own = hmac.digest(key, b"links to asks", hashlib.sha256)
    until = str(int(LATER.timestamp()))
    other = seal(own, "another purpose", "ask-1", "person:x", until, "")
    assert LINKS.unseal(other, "ask-1", NOW) is None
    assert LINKS.unseal(seal(own, "answer an ask", "ask-1"), "ask-1", NOW) is None


def test_a_secret_is_in_no_repr() -> None:
    assert "pepper" not in repr(LINKS)


def test_a_signature_is_over_the_time_and_the_body() -> None:
    said = signature(b"secret", NOW, b'{"type":"ask.opened"}')
    moment, _, signed = said.partition(",")
    assert moment == f"t={int(NOW.timestamp())}"
    over = moment.removeprefix("t=").encode() + b'.{"type":"ask.opened"}'
    assert signed == "v1=" + hmac.new(b"secret", over, hashlib.sha256).hexdigest()
    assert signature(b"secret", LATER, b'{"type":"ask.opened"}') != said
