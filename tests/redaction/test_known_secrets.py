"""`redaction/secrets.py`: a value that was given is found in every spelling."""

import base64
import json
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from comity.redaction.secrets import compile_hint, compile_pattern, spellings_of
from tests.support.cases import loop_over

VALUE = 'pa/ss+w"ö rd&1'


def _find(value: str, text: str) -> str | None:
    written = spellings_of([value])
    found, near = compile_pattern(written), compile_hint(written)
    assert found is not None
    assert near is not None
    matched = found.search(text)
    assert (matched is None) or near.search(text)
    return None if matched is None else written[matched[0]]


@loop_over(
    "text",
    [
        f"before{VALUE}after",
        f"https://example.org/?q={quote(VALUE, safe='')}&x=1",
        f"https://example.org/{quote(VALUE)}",
        quote(VALUE, safe="").lower().replace("%c3%b6", "%c3%b6"),
        json.dumps({"a": VALUE}),
        json.dumps({"a": VALUE}, ensure_ascii=False),
        *(
            f"Basic {base64.b64encode(('u' * length + ':' + VALUE + 'x').encode()).decode()}"
            for length in range(6)
        ),
        base64.urlsafe_b64encode(("?" + VALUE).encode()).decode(),
    ],
)
def test_it_is_found_however_it_is_written(text: str) -> None:
    assert _find(VALUE, text) == VALUE


@given(st.text(min_size=6, max_size=40), st.binary(max_size=9), st.binary(max_size=9))
def test_it_is_found_in_base64_wherever_it_begins(value: str, before: bytes, after: bytes) -> None:
    said = value.strip()
    if len(said) < 6 or len(said.splitlines()) != 1:
        return
    encoded = base64.b64encode(before + said.encode() + after).decode()
    if len(said.encode()) >= 7:
        assert _find(said, encoded) == said
    assert _find(said, f"x{said}y") is not None


def test_of_many_lines_each_is_a_secret() -> None:
    written = spellings_of(["first line\n  second line  \nshort\n"])
    assert {"first line", "second line"} <= set(written)
    assert "short" not in written


def test_the_longest_is_found_first() -> None:
    written = spellings_of(["secret", "secret-longer", "secret-longest"])
    found = compile_pattern(written)
    assert found is not None
    assert found.findall("secret-longest secret-longer secret-l") == [
        "secret-longest",
        "secret-longer",
        "secret",
    ]


def test_where_nothing_is_known_nothing_is_looked_for() -> None:
    assert compile_pattern(spellings_of(["short", ""])) is None
    assert compile_hint(()) is None


@given(st.lists(st.text(min_size=6, max_size=12), max_size=20), st.text(max_size=60))
def test_the_pattern_finds_exactly_what_stands_there(known: list[str], text: str) -> None:
    written = spellings_of(known)
    found, near = compile_pattern(written), compile_hint(written)
    stands = any(each in text for each in written)
    assert (found is not None and found.search(text) is not None) == stands
    assert not stands or (near is not None and near.search(text) is not None)
