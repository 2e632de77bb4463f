"""`redaction/redact.py`: what is written down of values and texts, and what never is."""

import base64
import itertools
import json
import time
from collections.abc import Callable, Iterator
from itertools import batched
from types import MappingProxyType
from urllib.parse import quote

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from comity.audit.events import AuditResult
from comity.mcp.jsonrpc import decode_value
from comity.redaction.redact import (
    MAX_DEPTH,
    MAX_IN_ALL,
    MAX_MEMBERS,
    MAX_TEXT_LENGTH,
    MOST_CHARACTERS,
    Redactor,
)
from tests.support.cases import loop_over

KNOWN = "canary/known+value&1"
SECRETS = [KNOWN, "48151623", "short", "of many lines\nand-one-more-line"]
redactor = Redactor(SECRETS, b"key")
MARK = redactor.mark(KNOWN)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=90),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=90), inner),
    max_leaves=20,
)


@loop_over(
    "said",
    [
        *("a word ", "", KNOWN, quote(KNOWN, safe=""), "48151623", "and-one-more-line"),
        *("sk-Ab3dEf6hIj9lMn2pQr5t", "AKIAIOSFODNN7EXAMPLE", "ghp_Ab3dEf6hIj9lMn2p", "\u202e"),
        *("Bearer abc123def456", "DPoP abc123def456", "Basic dXNlcjpwYXNz", "token%3Dhunter2 "),
        *("redis//:hunter2@db", "password=hunter2 ", "secret: hunter2 ", "--password hunter2 "),
        *("-----BEGIN PRIVATE KEY-----", "x" * 3000, 48151623, 7, 0.5, None, True, [KNOWN], {}),
    ],
)
@loop_over("name", ["text", "password", "value", "named"])
def test_an_argument_whose_name_is_known_is_redacted_as_at_the_first_time(
    name: str, said: object
) -> None:
    """A redactor that knows the names looks once whether there can be a secret."""
    arguments = {name: said, "name": "Authorization"} if name == "value" else {name: said}
    first = Redactor(SECRETS, b"key").redact(arguments)
    redactor.redact({each: [""] for each in arguments})
    assert redactor.redact(arguments) == first


def _spelled(text: str, ways: list[int]) -> bytes:
    """The text as JSON, with each character as it is or as an escape."""
    pieces = [
        json.dumps(letter, ensure_ascii=way == 1)[1:-1]
        if way < 2
        else "".join(f"\\u{unit:04x}" for unit in _units(letter))
        for letter, way in zip(text, itertools.cycle(ways), strict=False)
    ]
    return b'{"text":"%b"}' % "".join(pieces).encode()


def _units(letter: str) -> Iterator[int]:
    data = letter.encode("utf-16-le")
    return (int.from_bytes(pair, "little") for pair in batched(data, 2))


_hidden_texts = st.sampled_from(
    [KNOWN, "48151623", "ghp_Ab3dEf6hIj9lMn2p", "sk-Ab3dEf6hIj9lMn2pQr5t", "AKIAIOSFODNN7EXAMPLE"]
)
_neighbours = st.text(max_size=12) | st.sampled_from(["", "e t " * 480, "\n", " \x7f", "日本 "])


@given(_hidden_texts, _neighbours, _neighbours, st.lists(st.integers(0, 2), min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_a_secret_is_hidden_however_json_spells_it(
    secret: str, before: str, after: str, ways: list[int]
) -> None:
    arguments = decode_value(_spelled(f"{before} {secret} {after}", ways))
    redactor.redact({"text": [""]})
    kept = redactor.redact(arguments)
    assert kept == Redactor(SECRETS, b"key").redact(arguments)
    assert secret not in str(kept)
    assert redactor.mark(secret) in str(kept)


@given(st.text(max_size=40), st.integers(0, 2_100), st.lists(st.sampled_from(SECRETS), max_size=2))
@settings(max_examples=300, deadline=None)
@example("", 2_001, [])
@example("\u202e", 1_990, ["short"])
def test_a_long_text_is_kept_as_at_the_first_time(text: str, size: int, secrets: list[str]) -> None:
    arguments = {"text": "a b " * (size // 4) + text + " ".join(secrets) + "c d " * size}
    redactor.redact({"text": [""]})
    assert redactor.redact(arguments) == Redactor(SECRETS, b"key").redact(arguments)


def test_a_known_value_is_hidden_wherever_it_stands() -> None:
    said = redactor.redact(
        {
            "query": f"in the middle of {KNOWN}, as it is",
            "url": f"https://example.org/{quote(KNOWN, safe='')}",
            "header": base64.b64encode(f"ana:{KNOWN}".encode()).decode(),
            "nested": [{"deep": [KNOWN]}],
            KNOWN: "as a name",
            "number": 48151623,
            "json": json.dumps({"x": KNOWN}),
            "line": "and-one-more-line",
        }
    )
    text = json.dumps(said)
    for spelled in (KNOWN, quote(KNOWN, safe=""), "48151623", "one-more", "Y2FuYXJ5"):
        assert spelled not in text
    assert text.count(MARK) == 6


def test_what_stands_under_a_secrets_name_is_hidden_whatever_it_is() -> None:
    said = redactor.redact(
        {
            "password": "x",
            "pin": 1234,
            "credentials": {"user": "ana", "list": [1, None, True, ""]},
            "Authorization": "Bearer abc123def456",
            "headers": [{"name": "X-Token", "value": "x"}, {"name": "Accept", "value": "x"}],
            "args": ["--user", "ana", "--password", "x", "y"],
            "token_count": 7,
        }
    )
    mark = redactor.mark
    assert said == {
        "password": mark("x"),
        "pin": mark("1234"),
        "credentials": {"user": mark("ana"), "list": [mark("1"), None, True, ""]},
        "Authorization": mark("abc123def456"),
        "headers": [{"name": "X-Token", "value": mark("x")}, {"name": "Accept", "value": "x"}],
        "args": ["--user", "ana", "--password", mark("x"), "y"],
        "token_count": 7,
    }


def test_equal_secrets_leave_equal_marks_and_only_with_one_key() -> None:
    token = "ghp_Ab3dEf6hIj9lMn2pQr5t"
    marks = {
        str(redactor.redact({"token": token})),
        str({"token": redactor.redact_text(token)}),
        str({"token": redactor.redact_text(f"Bearer {token}").removeprefix("Bearer ")}),
    }
    assert len(marks) == 1
    assert Redactor([], b"other").mark(token) not in marks.pop()


def test_a_text_without_secrets_stays_as_it_is() -> None:
    said = {"path": "/project/read me.md", "limit": 10, "deep": True, "ratio": 0.5, "none": None}
    assert redactor.redact(said) == said
    assert redactor.redact_text("two\nlines") == "two\nlines"


def test_what_cannot_be_kept_or_shown_is_spelled_out_in_names_too() -> None:
    assert redactor.redact({"a\x00": "\x1b[2J\ud800"}) == {"a\\x00": "\\x1b[2J\\ud800"}


def test_a_long_text_is_cut_and_told_how_long_it_was() -> None:
    said = redactor.redact_text("a" * 5000)
    assert said.startswith("a" * MAX_TEXT_LENGTH + "… [3,000 more characters: ")
    assert redactor.redact_text("a" * 5000) != redactor.redact_text("a" * 4999 + "b")


@loop_over("place", range(MAX_TEXT_LENGTH - 25, MAX_TEXT_LENGTH + 5))
def test_a_secret_is_hidden_where_a_text_is_cut(place: int) -> None:
    said = redactor.redact_text("." * place + KNOWN + "." * 9000)
    assert "canary" not in said
    assert "[secret:" not in said.replace(MARK, "")


def test_what_is_nested_too_deep_or_too_much_is_left_out() -> None:
    deep: object = "bottom"
    for _ in range(200):
        deep = {"a": [deep]}
    assert json.dumps(redactor.redact(deep)).count("[") == MAX_DEPTH // 2 + 1
    assert "nested too deep" in str(redactor.redact(deep))
    many = redactor.redact(list(range(5000)))
    assert many == [*range(MAX_MEMBERS), "[4,900 more]"]
    wide = redactor.redact({str(each): each for each in range(5000)})
    assert str(wide).endswith("'99': 99, '…': '[4,900 more]'}")


def test_all_of_it_together_is_bounded() -> None:
    trees = [[["x" * 1999] * 90] * 90] * 90
    said = json.dumps(redactor.redact(trees))
    assert len(said) < MOST_CHARACTERS + MAX_IN_ALL * 120
    empty: dict[str, object] = {}
    wide = [[[empty] * 90] * 90] * 90
    assert json.dumps(redactor.redact(wide)).count("{}") <= MAX_IN_ALL


def test_whatever_it_is_given_it_gives_what_json_has() -> None:
    said = redactor.redact(
        {
            "raw": msgspec.Raw(b'{"password":"x"}'),
            "broken": msgspec.Raw(b"{"),
            "view": MappingProxyType({"a": (1, AuditResult.SUCCESS)}),
            "bytes": b"raw",
            "other": object(),
            3: "a name that is none",
        }
    )
    assert msgspec.json.decode(msgspec.json.encode(said)) == {
        "raw": {"password": redactor.mark("x")},
        "broken": "[no JSON]",
        "view": {"a": [1, "SUCCESS"]},
        "bytes": "[bytes]",
        "other": "[object]",
        "3": "a name that is none",
    }


@given(_json)
def test_nothing_known_survives_and_nothing_changes_twice(value: object) -> None:
    once = redactor.redact({"a": value, "b": [KNOWN, value]})
    encoded = msgspec.json.encode(once)
    assert b"\\u0000" not in encoded
    assert KNOWN.encode() not in encoded
    assert redactor.redact(once) == once


@given(st.text(), st.text())
def test_a_known_value_between_any_two_texts_is_hidden(before: str, after: str) -> None:
    assert KNOWN not in redactor.redact_text(before + KNOWN + after)


def _of(size: int) -> list[str]:
    pieces = (
        *("a", "a-", "://a:", "sk-", 'password="\\', "eyJaaaaaaaa.", "\x00", "token=a "),
        *("-----BEGIN PRIVATE KEY", "--token a ", KNOWN[:-1], "Bearer ", "=", "\\", "%3D"),
    )
    return [piece * (size // len(piece)) for piece in pieces]


def test_no_text_takes_more_than_its_share_of_time() -> None:
    def took(texts: list[str], look: Callable[[str], object]) -> float:
        began = time.process_time()
        for text in texts:
            look(text)
        return time.process_time() - began

    # Looked through in whole: twenty times the text may cost some twenty times the time, and what
    # is quadratic would cost four hundred times.
    short = min(
        took(_of(5_000), lambda text: redactor.redact_text(text, 200_000)) for _ in range(3)
    )
    long = min(
        took(_of(100_000), lambda text: redactor.redact_text(text, 200_000)) for _ in range(3)
    )
    assert long < 100 * max(short, 0.002)


def test_nothing_of_it_is_told_by_its_repr() -> None:
    assert "canary" not in repr(redactor)
