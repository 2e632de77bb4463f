"""JSON as strangers write it: odd white space, odd escapes, repeated keys, and where they are."""

import json
from dataclasses import dataclass
from typing import cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# A machine that is busy with other things makes no property false.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Written:
    """A JSON text, and where in it a key stands twice."""

    text: str
    repeated_here: bool = False
    repeated_deeper: bool = False

    @property
    def data(self) -> bytes:
        return self.text.encode()

    @property
    def repeated(self) -> bool:
        return self.repeated_here or self.repeated_deeper


@dataclass(frozen=True)
class Member:
    """A key, how it is spelled, and its value."""

    name: str
    spelling: str
    value: Written


# Each character beside one of the ways to spell it in JSON.
SPELLINGS = (
    *(("a", "a"), ("a", "\\u0061"), ("b", "b"), ("é", "é"), ("é", "\\u00e9"), ("é", "\\u00E9")),
    *(("/", "/"), ("/", "\\/"), ('"', '\\"'), ("\\", "\\\\"), ("\\", "\\u005c"), ("{", "{")),
    *(("\n", "\\n"), ("\n", "\\u000a"), ("\x00", "\\u0000"), ("\x7f", "\x7f"), ("]", "]")),
    *(("😀", "😀"), ("😀", "\\ud83d\\ude00"), ("\u2028", "\u2028"), ("\u2028", "\\u2028")),
)
NUMBERS = (
    *("0", "-0", "7", "-7", "9007199254740993", "18446744073709551616", "1" * 40),
    *("1.0", "1e3", "1E3", "1e-7", "1.10", "-0.0", "123456789012345680.0", "1e16", "5e-324"),
)

spaces = st.sampled_from(["", "", "", " ", "\t", "\n", "\r\n"])
spelled = st.lists(st.sampled_from(SPELLINGS), max_size=3).map(
    lambda pairs: ("".join(pair[0] for pair in pairs), "".join(pair[1] for pair in pairs))
)
scalars = st.one_of(
    st.sampled_from(["null", "true", "false", *NUMBERS]), spelled.map(lambda pair: f'"{pair[1]}"')
).map(Written)


def is_repeated(names: list[str]) -> bool:
    return len(set(names)) < len(names)


def array_of(items: list[Written], gap: str) -> Written:
    text = "[" + f"{gap},".join(item.text for item in items) + gap + "]"
    return Written(text, repeated_deeper=any(item.repeated for item in items))


def object_of(members: list[Member], gap: str) -> Written:
    pairs = [f'{gap}"{each.spelling}"{gap}:{each.value.text}' for each in members]
    return Written(
        "{" + ",".join(pairs) + gap + "}",
        is_repeated([each.name for each in members]),
        any(each.value.repeated for each in members),
    )


def member_of(pair: tuple[str, str], value: Written) -> Member:
    return Member(pair[0], pair[1], value)


def objects_over(values: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    members = st.lists(st.builds(member_of, spelled, values), max_size=4)
    return st.builds(object_of, members, spaces)


values: st.SearchStrategy[Written] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(array_of, st.lists(inner, max_size=3), spaces), objects_over(inner)
    ),
    max_leaves=8,
)
objects = objects_over(values)

KNOWN = ("jsonrpc", "id", "method", "params", "result", "error")


def _spellings_of(name: str) -> st.SearchStrategy[str]:
    escaped = f"\\u{ord(name[0]):04x}{name[1:]}"
    return st.sampled_from([name, name, name, escaped])


@st.composite
def frames(draw: st.DrawFn) -> Written:
    """Something near a JSON-RPC message: often one, with repeated and unknown members."""
    held = {
        "jsonrpc": st.just(Written('"2.0"')),
        "id": st.sampled_from(["1", "1", '"x"', '"\\u0078"', "1e3", "null"]).map(Written),
        "method": st.sampled_from(['"m"', '"\\u006d"']).map(Written),
    }
    answer = draw(st.booleans())
    names = ["jsonrpc", "id", draw(st.sampled_from(["result", "error"]))] if answer else ["jsonrpc"]
    if not answer:
        names += ["method", *draw(st.lists(st.sampled_from(["id", "params"]), max_size=2))]
    names += draw(st.lists(st.sampled_from([*KNOWN, "trace", "members", "Id"]), max_size=1))
    members = [
        Member(name, draw(_spellings_of(name)), draw(held.get(name, values)))
        for name in draw(st.permutations(names))
    ]
    return object_of(members, draw(spaces))


def read_loosely(data: bytes) -> object:
    """What the standard library makes of it, with every number as it was written."""
    return cast(object, json.loads(data, parse_int=str, parse_float=str))
