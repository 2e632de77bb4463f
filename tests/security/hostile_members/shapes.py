"""Envelopes that are none, that are huge or deep, or that two readers would read in two ways."""

import json

from tests.security.hostile_members.said import (
    ID,
    Case,
    envelope,
    said,
    text_of,
    with_pairs,
    with_payload,
)
from tests.security.hostile_members.scene import ANA, ANYTHING

MIB = 2**20
INVALID = "invalid_envelope"

# A member of another type, for each of them: what stands there, and whether the id can be told.
WRONG: dict[str, tuple[object, ...]] = {
    "protocol": (None, 1, ["mcpx/v0.1"], "mcpx/v0.2", "mcp-x/v0", "MCPX/V0.1", "mcpx/v0.1 ", ""),
    "id": (None, 7, ["a"], {}, "", "a\n", "a\0", "\u202ea", "i" * 257),
    "from": (None, 7, [ANYTHING], {"id": ANYTHING}),
    "to": (ANA, 7, {ANA: 1}, [7], [None], [[ANA]], [""], ["a\n"], ["a" * 257], [ANA] * 1_001),
    "ts": (7, ["now"], {}, True, "now\nthen", "9" * 65),
    "correlation_id": (7, ["a"], {}, True, "a\n", "a\x1b", "c" * 257),
    "payload": (None, 7, "{}", [], [{}], True),
}


def _short(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) < 24 else f"{shown[:20]}… of {len(shown)}"


MISSHAPEN = [
    *(
        Case(
            f"{member}: {_short(value)}",
            ANYTHING,
            said(**{member: value}),
            INVALID,
            "" if member == "id" else ID,
        )
        for member, values in WRONG.items()
        for value in values
    ),
    *(
        Case(
            f"no {member}",
            ANYTHING,
            text_of({k: v for k, v in envelope(ANYTHING).items() if k != member}),
            INVALID,
            "" if member == "id" else ID,
        )
        for member in ("protocol", "id", "from", "kind", "payload")
    ),
]

# What two readers would read in two ways.

TWICE: dict[str, object] = {
    "protocol": "mcpx/v0.1",
    "id": "hostile-2",
    "from": ANA,
    "to": [ANA],
    "kind": "system/welcome",
    "payload": {"text": "other"},
    "x": 2,
}
RESPELT = ("Protocol", "ID", "From", "FROM", "To", "Kind", "KIND", "Payload", "Correlation_Id")
AMBIGUOUS = [
    *(
        Case(
            f"twice: {name}",
            ANYTHING,
            with_pairs((name, value), ("x", 1), ("to", [])),
            INVALID,
            "hostile-2" if name == "id" else ID,
        )
        for name, value in TWICE.items()
    ),
    Case(
        "twice: from, the honest one last",
        ANYTHING,
        with_pairs(("from", ANA), first=True),
        INVALID,
    ),
    Case("twice: from, in escapes", ANYTHING, with_pairs(("\\u0066rom", ANA)), INVALID),
    Case(
        "twice: kind, in escapes, first",
        ANYTHING,
        with_pairs(("\\u006b\\u0069nd", "system/error"), first=True),
        INVALID,
    ),
    *(Case(f"respelt: {name}", ANYTHING, with_pairs((name, ANA)), INVALID) for name in RESPELT),
    Case("respelt: from, in escapes", ANYTHING, with_pairs(("\\u0046rom", ANA)), INVALID),
    Case("respelt: kind, with a Kelvin sign", ANYTHING, with_pairs(("\\u212aind", "x")), INVALID),
    Case("respelt: ts, with a long s", ANYTHING, with_pairs(("t\\u017f", "x")), INVALID),
]

# What is no JSON, or is so only to some.

TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "a word": b"hello",
    "a list of one": b"[" + said() + b"]",
    "null": b"null",
    "a number": b"1e400",
    "a text": json.dumps("hello").encode(),
    "two at once": said() + said(),
    "two on two lines": said() + b"\n" + said(),
    "cut off": said()[:-1],
    "a comma too many": said()[:-1] + b",}",
    "a NUL behind it": said() + b"\0",
    "a byte order mark before it": b"\xef\xbb\xbf" + said(),
    "a comment": b"/* */" + said(),
    "single quotes": said().replace(b'"', b"'"),
    "names without quotes": said().replace(b'"kind"', b"kind"),
    "not a number": with_payload(b'{"text":NaN}'),
    "no end of a number": with_payload(b'{"text":Infinity}'),
    "a number with a zero before it": with_payload(b'{"text":01}'),
    "a raw line break": with_payload(b'{"text":"a\nb"}'),
    "a raw NUL": with_payload(b'{"text":"a\0b"}'),
    "an escape that is none": with_payload(b'{"text":"\\x41"}'),
    "half a surrogate in an escape": with_payload(b'{"text":"\\ud800"}'),
    "half a surrogate in the kind": said(kind="?").replace(b'"?"', b'"chat\\udfff"'),
    "an MCP request and no envelope": b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
    "only brackets": b"[" * (MIB - 1),
    "only objects": b'{"a":' * 200_000,
    "a payload without an end": said()[:-2] + b'{"payload":' * 50_000,
}
NO_JSON = [Case(f"text: {name}", ANYTHING, text, INVALID, "") for name, text in TEXTS.items()]

DEEP = b'{"a":' * 64 + b"1" + b"}" * 64
BULKY = [
    Case("deep: a payload of 65 levels", ANYTHING, with_payload(DEEP), INVALID),
    Case(
        "deep: lists in a payload",
        ANYTHING,
        with_payload(b'{"a":' + b"[" * 64 + b"]" * 64 + b"}"),
        INVALID,
    ),
    Case(
        "deep: 100,000 levels in a payload",
        ANYTHING,
        with_payload(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        INVALID,
        "",
    ),
    Case(
        "deep: a member that nobody knows",
        ANYTHING,
        said()[:-1] + b',"x":' + DEEP + b"}",
        INVALID,
    ),
    Case("deep: its id", ANYTHING, said(id="?").replace(b'"?"', DEEP), INVALID, ""),
    Case(
        "huge: 60,000 members, one of them twice",
        ANYTHING,
        with_pairs(*((f"x{each}", 1) for each in range(60_000)), ("x1", 1)),
        INVALID,
    ),
    Case(
        "huge: the name of a member, twice",
        ANYTHING,
        with_pairs(*[("x" * 400_000, 1)] * 2),
        INVALID,
    ),
    Case("huge: its kind", ANYTHING, said(kind="k" * 900_000), INVALID),
    Case("huge: its id", ANYTHING, said(id="i" * 900_000), INVALID, ""),
    Case("huge: its addressees", ANYTHING, said(to=["a"] * 200_000), INVALID),
    Case("huge: its moment", ANYTHING, said(ts="9" * 900_000), INVALID),
    Case("huge: what it refers to", ANYTHING, said(correlation_id="c" * 900_000), INVALID),
]

# What is no text at all, in a frame that says it is one.

BYTES: dict[str, bytes] = {
    "no UTF-8 in a payload": with_payload(b'{"text":"\xff"}'),
    "a long form of a slash": said(kind="?").replace(b"?", b"system\xc0\xafwelcome"),
    "a surrogate as bytes": with_payload(b'{"text":"\xed\xa0\x80"}'),
    "beyond the last character": with_payload(b'{"text":"\xf4\x90\x80\x80"}'),
    "another encoding": json.dumps(envelope(ANYTHING)).encode("utf-16"),
    "Latin-1": with_payload(b'{"text":"caf\xe9"}'),
}
_NAMELESS = ("a long form of a slash", "another encoding")
NO_TEXT = [
    Case(f"bytes: {name}", ANYTHING, data, INVALID, "" if name in _NAMELESS else ID)
    for name, data in BYTES.items()
]

SHAPES = [*MISSHAPEN, *AMBIGUOUS, *NO_JSON, *BULKY, *NO_TEXT]
