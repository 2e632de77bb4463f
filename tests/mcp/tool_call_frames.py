"""Frames that are tool calls, or nearly so, as honest and hostile clients write them."""

import json
import random
from typing import Final

PARAMS: Final = ',"method":"tools/call","params":'
TEXTS: Final = (
    *("", "a", "hello", "é", "日本", "😀", "\\u00e9", "\\u0041", "\\ud83d\\ude00", "\\ud800"),
    *("\\udc00x", "\\ud800\\u0041", "\\n", "\\/", '\\"', "\\\\", '\\\\\\"', "\\u0000", "\x7f"),
    *(",", ",,", '\\",', ',\\"', '\\",\\"', ":", "{", "}", "[", "]", '{\\"a\\":1}', "\u2028"),
    *(PARAMS.replace('"', '\\"'), PARAMS.replace('"', "\\u0022"), "tools/call", "\\x", "\\u12"),
    *("x" * 255, "x" * 256, "x" * 257, "é" * 256, "é" * 257, "y" * 700, "\t", "a\nb", "a\rb"),
)
IDS: Final = (
    *("0", "1", "7", "-1", "-7", "-0", "007", "+1", "1.0", "1e3", "1.5", "null", "true", "[1]"),
    *("{}", "9007199254740991", "9007199254740992", "9007199254740993", "-9007199254740992"),
    *("-9007199254740993", "18446744073709551616", "1" * 400, "NaN", "1e15", "'1'", "nul"),
)
NAMES: Final = ('"echo"', '"stub__echo"', '"e\\u0063ho"', '""', "null", "7", "{}", '["echo"]')
METHODS: Final = ("tools/list", "tools/Call", "tools/call ", "tools\\/call", "ping", "x" * 257)
NUMBERS: Final = ("0", "-0", "1.10", "1e400", "1E-7", "1" * 120, "-" + "9" * 30, "5e-324", "01")
METAS: Final = (
    *("{}", "null", '{"progressToken":7}', '{"progressToken":"p","progressToken":8}', "[]"),
    *('{"progress\\u0054oken":1}', '{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"}', '{"a":{}}'),
)
OTHER_PARAMS: Final = (
    *('"requestState":"s"', '"task":{"ttl":1}', '"Name":"shadow"', '"inputResponses":{}'),
    *('"name":"again"', '"n\\u0061me":"again"', '"arguments":{}', '"_meta":{}', '"extra":[1]'),
)
OTHER_MEMBERS: Final = (
    *('"jsonrpc":"2.0"', '"id":2', '"\\u0069d":2', '"method":"tools/call"', '"params":{}'),
    *('"result":{}', '"error":{"code":1,"message":"m"}', '"trace":{"trace_id":"a"}', '"members":1'),
    *('"Method":"tools/call"', '"ID":3', '"param\u017f":{}', '"Params":{"name":"x"}', '"":1'),
    *('"result":null', '"error":null', '"encoded":1', '"tool":{"name":"x"}', '"id_end":9'),
)


class FrameWriter:
    """Writes frames that are tool calls, or nearly so."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # the same frames in each run
        self._choose = self._random.choice

    def _happens(self, share: float) -> bool:
        return self._random.random() < share

    def frame(self) -> bytes:
        """Return a frame. One in three is plain, the others have one oddity or more."""
        is_plain = self._happens(0.35)
        members = self._members(is_plain=is_plain)
        gap = "" if is_plain or self._happens(0.85) else self._choose((" ", "\n", "\r\n", "\t"))
        data = ("{" + f"{gap},{gap}".join(members) + gap + "}").encode("utf-8", "surrogatepass")
        return data if is_plain or self._happens(0.85) else self.damaged(data)

    def _members(self, *, is_plain: bool) -> list[str]:
        params = self._params(is_plain=is_plain)
        method = "tools/call" if is_plain or self._happens(0.9) else self._choose(METHODS)
        members = ['"jsonrpc":"2.0"', f'"id":{self._id(is_plain)}', f'"method":"{method}"']
        members += [f'"params":{params}'] if is_plain or self._happens(0.97) else []
        if is_plain:
            return members
        if self._happens(0.15):
            members.insert(self._random.randrange(5), self._choose(OTHER_MEMBERS))
        if self._happens(0.1):
            self._random.shuffle(members)
        if self._happens(0.05):
            members.pop(self._random.randrange(len(members)))
        return members

    def _id(self, is_plain: bool) -> str:
        if is_plain or self._happens(0.3):
            return str(self._random.randrange(-5, 10**6))
        return self._choose(IDS) if self._happens(0.4) else f'"{self._text()}"'

    def _text(self) -> str:
        return "".join(self._choose(TEXTS) for _ in range(self._random.randrange(1, 4)))

    def _params(self, *, is_plain: bool) -> str:
        if is_plain:
            return f'{{"name":"echo","arguments":{{"text":"{self._random.random()}"}}}}'
        if self._happens(0.04):
            return self._choose(("[]", '["echo"]', "null", "1", '"name"', "{}"))
        name = self._choose(NAMES) if self._happens(0.6) else f'"{self._text()}"'
        members = [f'"name":{name}']
        if self._happens(0.9):
            members.append(f'"arguments":{self._arguments()}')
        if self._happens(0.3):
            members.append(f'"_meta":{self._choose(METAS)}')
        if self._happens(0.15):
            place = self._random.randrange(len(members) + 1)
            members.insert(place, self._choose(OTHER_PARAMS))
        if self._happens(0.1):
            self._random.shuffle(members)
        gap = self._choose((" ", "\n", "\t", "\r")) if self._happens(0.06) else ""
        return "{" + gap + f",{gap}".join(members) + "}"

    def _arguments(self) -> str:
        if self._happens(0.08):
            return self._choose(("null", "[]", "[1]", '"x"', "7", "{", "{}}", '{"a"}', "tru"))
        return self._object(0)

    def _object(self, level: int) -> str:
        keys = ("a", "b", "text", "\\u0061", "é", "A", ":", "a b")
        gap = " " if self._happens(0.05) else ""
        pairs = [
            f'"{self._choose(keys)}":{gap}{self._value(level + 1)}'
            for _ in range(self._random.randrange(4))
        ]
        return "{" + ",".join(pairs) + "}"

    def _value(self, level: int) -> str:
        chosen = self._random.random()
        if chosen < 0.45:
            return f'"{self._text()}"'
        if chosen < 0.6:
            return self._choose(NUMBERS)
        if chosen < 0.7:
            return self._choose(("true", "false", "null", "[]", "{}", "NaN", "Infinity"))
        if chosen < 0.73:
            depth = self._random.randrange(1, 14)
            return "[" * depth + "]" * depth
        if level > 3:
            return "1"
        return self._object(level) if chosen < 0.9 else f"[{self._value(level)},{level}]"

    def damaged(self, data: bytes) -> bytes:
        """Return a message with one part cut, added or changed."""
        place, choose = self._random.randrange(len(data)), self._choose
        before, after = data[:place], data[place:]
        tail = choose((b" ", b"\n", b"{}", b"x", b"\x00", b"\r\n", b",", b"\xff"))
        return choose(
            (
                before,
                data + tail,
                before + choose((b"\xff", b"\xc3", b"\xed\xa0\x80")) + after,
                before + after[1:],
                choose((b"\xef\xbb\xbf", b" ", b"\n", b"[", b"\x00")) + data,
                before + self._random.randbytes(1) + after[1:],
                data.replace(b":", choose((b": ", b" :", b":\n", b"::")), 1),
                data + data,
            )
        )


def sorted_members(pairs: list[tuple[str, object]]) -> object:
    return {"members": sorted(pairs, key=lambda pair: pair[0])}


def meaning_of(data: bytes) -> object:
    """Return a message in a form that neither the order nor the spelling of members changes.

    Numbers keep their digits, and a repeated member stays repeated.
    """
    assert b"\n" not in data
    assert b"\r" not in data
    # The interpreter converts a number of 4,300 digits or more in no case, so it stays a text.
    return json.loads(data, object_pairs_hook=sorted_members, parse_int=str, parse_float=str)


def find_no_tool_call(*_: object) -> None:
    """Leave every frame to the general way."""
