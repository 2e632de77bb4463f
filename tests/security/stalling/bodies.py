"""Hostile JSON by name, as large as there is room for it.

A value stands wherever a message holds one. Most are valid JSON, so that a reader which builds
first and judges afterwards pays the whole price; a body is what no place in a message can hold.
"""

from collections.abc import Callable
from itertools import count
from typing import Final

from comity.mcp.jsonrpc import FROM_CLIENTS, LIMITS

type Made = Callable[[int], bytes]
"""JSON of at most so many bytes."""

MEBIBYTE: Final = 2**20


def filled(piece: bytes, room: int, around: bytes = b"", between: bytes = b"") -> bytes:
    """As many pieces as there is room for, between two brackets or quotes."""
    pieces = max(1, (room - len(around)) // (len(piece) + len(between)))
    opening, closing = around[: len(around) // 2], around[len(around) // 2 :]
    return opening + ((piece + between) * pieces).removesuffix(between) + closing


def many(piece: bytes) -> Made:
    return lambda room: filled(piece, room, b"[]", b",")


def few(piece: bytes, values: int) -> Made:
    """As many as a message may have, so that none is refused for their number."""
    each = 1 + sum(piece.count(sign) for sign in (b"{", b"[", b","))
    return lambda room: filled(piece, min(room, values // each * (len(piece) + 1)), b"[]", b",")


def text(piece: bytes) -> Made:
    return lambda room: filled(piece, room, b'""')


def around(piece: bytes, before: bytes, after: bytes) -> Made:
    """White space or the like, where a reader has to pass over it."""
    return lambda room: before + filled(piece, room - len(before) - len(after)) + after


def members(name: Callable[[int], bytes], value: bytes) -> Made:
    """An object with as many members as there is room for."""

    def make(room: int) -> bytes:
        found: list[bytes] = []
        left = room - 2
        for number in count():
            member = b'"%b":%b' % (name(number), value)
            left -= len(member) + 1
            if left < 0:
                return b"{" + b",".join(found) + b"}"
            found.append(member)
        raise AssertionError

    return make


def nested(opening: bytes, closing: bytes, depth: int) -> Made:
    """Towers of one height, side by side."""
    return many(opening * depth + closing * depth)


def mixed(room: int) -> bytes:
    """Brackets, quotes and escapes in strings, between those that are none."""
    return filled(rb'["]}\"{[\\",{"}":[","]}]', room, b"[]", b",")


VALUES: Final[dict[str, Made]] = {
    # Wide: many containers.
    "empty objects": many(b"{}"),
    "empty lists": many(b"[]"),
    "objects of one member": many(b'{"a":1}'),
    "lists of one number": many(b"[1]"),
    "objects that share no key": many(b'{"a":{"b":{"c":{}}}}'),
    "zeros": many(b"0"),
    "truths": many(b"true"),
    "nulls": many(b"null"),
    "empty strings": many(b'""'),
    "one letter each": many(b'"a"'),
    "fractions": many(b"0.1"),
    "exponents": many(b"1e9"),
    "negative zeros": many(b"-0.0"),
    # Deep: towers, and their neighbours.
    "towers of 20": nested(b"[", b"]", 20),
    "towers of 58": nested(b"[", b"]", 58),
    "towers of objects": many(b'{"":' * 20 + b"1" + b"}" * 20),
    "one tower to the sky": lambda room: b"[" * (room // 2) + b"]" * (room // 2),
    "one tower of objects": lambda room: b'{"a":' * (room // 6) + b"1" + b"}" * (room // 6),
    "an unclosed tower": lambda room: b"[" * room,
    "an unclosed tower of objects": lambda room: b'{"a":' * (room // 5),
    "brackets that close nothing": lambda room: b"]" * room,
    # Keys.
    "many members": members(lambda n: b"%d" % n, b"1"),
    "many members of objects": members(lambda n: b"%d" % n, b"{}"),
    "members with an escaped name": members(lambda n: b"\\u0061%d" % n, b"1"),
    "the same member again and again": members(lambda n: b"a", b"1"),
    "the same member, spelt in escapes": members(lambda n: (b"a", b"\\u0061")[n % 2], b"1"),
    "objects with a repeated key": many(b'{"a":1,"a":2}'),
    "one repeated key after many others": lambda room: (
        members(lambda n: b"%d" % n, b"1")(room - 20)[:-1] + b',"0":1}'
    ),
    "long keys": members(lambda n: b"%d" % n + b"k" * 4096, b"1"),
    "one key of all the room": lambda room: b'{"' + b"k" * (room - 8) + b'":1}',
    "one key of escapes": lambda room: b'{"' + b"\\n" * (room // 2 - 8) + b'":1}',
    "keys that hash alike": members(lambda n: b"\\u0000" * (n % 50) + b"%d" % n, b"1"),
    "names of JavaScript's prototypes": many(b'{"__proto__":{"constructor":{}}}'),
    # Numbers.
    "an integer of all the room": lambda room: b"9" * room,
    "a fraction of all the room": lambda room: b"0." + b"9" * (room - 2),
    "an exponent of all the room": lambda room: b"1e" + b"9" * (room - 2),
    "a negative exponent of all the room": lambda room: b"1e-" + b"9" * (room - 3),
    "integers of 4,300 digits": many(b"9" * 4300),
    "integers of 1,000 digits": many(b"9" * 1000),
    "integers of 200 digits": many(b"9" * 200),
    "integers of 100 digits": many(b"9" * 100),
    "integers of 25 digits": many(b"9" * 25),
    "fractions of 4,300 digits": many(b"0." + b"9" * 4300),
    "fractions near the least double": many(b"4.9406564584124654e-324"),
    # Strings.
    "a string of letters": text(b"a"),
    "a string of commas": text(b","),
    "a string of brackets": text(b"{["),
    "a string of colons": text(b":"),
    "a string of line ends": text(b"\\n"),
    "a string of quotes": text(b'\\"'),
    "a string of backslashes": text(b"\\\\"),
    "a string of backslashes and quotes": text(b'\\\\\\"'),
    "a string of escaped letters": text(b"\\u0061"),
    "a string of NULs": text(b"\\u0000"),
    "a string of escaped pairs": text(b"\\ud83d\\ude00"),
    "a string of half pairs": text(b"\\ud83d"),
    "one half pair at the end": lambda room: b'"' + b"a" * (room - 8) + b"\\udc00" + b'"',
    "a string of emoji": text("\U0001f600".encode()),
    "a string of accents": text("e\u0301".encode()),
    "a string of broken UTF-8": text(b"\xff"),
    "one broken byte at the end": lambda room: b'"' + b"a" * (room - 3) + b"\xff" + b'"',
    "a string of control characters": text(b"\x01"),
    "a string without an end": lambda room: b'"' + b"a" * (room - 1),
    "JSON in a string": text(rb"{\"name\":\"value\",\"list\":[1,2,3]},"),
    "digits in a string": text(b"1234567890"),
    "strings of brackets": many(b'"{[,"'),
    "strings of one quote": many(b'"\\""'),
    "lines of a table": text(b"1,2,3,4,5,6\\n"),
    # White space.
    "blanks before a number": around(b" ", b"", b"1"),
    "blanks in a list": around(b" ", b"[", b"]"),
    "blanks between members": around(b" ", b'{"a":1,', b'"b":2}'),
    "tabs and line ends": around(b"\t\r\n ", b"[", b"1]"),
    "blanks around each number": many(b" 0 "),
    "blanks and a repeated key": around(b" ", b'{"a":1,"a":2,"b":[', b"]}"),
    "blanks and quotes": around(b' "\\"" ,', b"[", b"1]"),
    # All at once.
    "brackets in strings and outside": mixed,
    "a matrix": lambda room: filled(filled(b"0", 2048, b"[]", b","), room, b"[]", b","),
    "rows of a table": many(b'{"id":1,"name":"n","at":"2026-01-01T00:00:00Z","tags":["a","b"]}'),
}


def permitted(values: int) -> dict[str, Made]:
    """As much as passes, of what costs most; `values` is how many there may be."""
    left = values - 100
    return {
        "objects": few(b"{}", left),
        "lists": few(b"[]", left),
        "objects of one member": few(b'{"a":1}', left),
        "zeros": few(b"0", left),
        "fractions": few(b"0.1", left),
        "strings": few(b'"' + b"s" * 50 + b'"', left),
        "long strings": few(b'"' + b"s" * 150 + b'"', left),
        "strings of escapes": few(b'"' + b'\\"' * 20 + b'"', left),
        "towers": few(b"[" * 40 + b"]" * 40, left),
        "members": lambda room: members(lambda n: b"%d" % n, b"1")(min(room, 8 * left)),
        "members of objects": lambda room: members(lambda n: b"%d" % n, b"{}")(min(room, 5 * left)),
        "long numbers": few(b"9" * 100, left),
        "rows": few(b'{"id":1,"name":"n","url":"http://a:1/b","tags":["a","b"]}', left),
        "rows in blanks": few(b'{ "id" : 1 , "url" : "http://a:1/\\"" }', left),
        "escapes": lambda room: b'"' + b'\\"' * min(room // 2 - 2, MEBIBYTE - 500) + b'"',
        "escapes in blanks": lambda room: (
            b'{ "a:" : "' + b"\\\\" * min(room // 2 - 20, MEBIBYTE - 500) + b'" }'
        ),
    }


FROM_A_CLIENT: Final = permitted(FROM_CLIENTS.values)
FROM_A_SERVER: Final = permitted(LIMITS.values)

BODIES: Final[dict[str, Made]] = {
    "nothing but blanks": lambda room: b" " * room,
    "nothing but line ends": lambda room: b"\n" * room,
    "nothing but NULs": lambda room: b"\0" * room,
    "nothing but quotes": lambda room: b'"' * room,
    "nothing but backslashes": lambda room: b"\\" * room,
    "nothing but commas": lambda room: b"," * room,
    "nothing but brackets": lambda room: b"[{" * (room // 2),
    "a byte order mark": lambda room: b"\xef\xbb\xbf" + many(b"{}")(room - 3),
    "UTF-16": lambda room: many(b"{}")(room // 2 - 2).decode().encode("utf-16"),
    "a batch": lambda room: filled(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', room, b"[]", b","),
    "two messages": lambda room: (
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}' + many(b"{}")(room - 50)
    ),
    "many unknown members": lambda room: (
        b'{"jsonrpc":"2.0","id":1,"method":"ping",'
        + members(lambda n: b"x%d" % n, b"1")(room - 50)[1:]
    ),
    "a message in blanks": lambda room: (
        b'{"jsonrpc":"2.0",' + b" " * (room - 60) + b'"id":1,"method":"ping"}'
    ),
    "an id of objects": lambda room: (
        b'{"jsonrpc":"2.0","method":"ping","id":' + many(b"{}")(room - 50) + b"}"
    ),
    "a version of objects": lambda room: (
        b'{"id":1,"method":"ping","jsonrpc":' + many(b"{}")(room - 50) + b"}"
    ),
}

STREAMS: Final[dict[str, Made]] = {
    "a line of data for each byte": lambda room: b"data:x\n" * (room // 7) + b"\n",
    "empty lines of data": lambda room: b"data\n" * (room // 5) + b"\n",
    "comments": lambda room: b":\n" * (room // 2) + b"\n",
    "ids": lambda room: b"id:%b\n" % (b"1" * 100) * (room // 104) + b"\n",
    "names of events": lambda room: b"event:x\n" * (room // 8) + b"\n",
    "times to wait": lambda room: b"retry:1\n" * (room // 8) + b"\n",
    "unknown fields": lambda room: b"x:y\n" * (room // 4) + b"\n",
    "events without data": lambda room: b"id:1\n\n" * (room // 6),
    "events of one byte": lambda room: b"data:x\n\n" * (room // 8),
    "one field of all the room": lambda room: b"x" * room + b"\n\n",
    "returns": lambda room: b"\r" * room,
    "empty messages": lambda room: b'data:{"jsonrpc":"2.0","method":"x"}\n\n' * (room // 37),
}

HEADERS: Final[dict[str, list[tuple[str, str]]]] = {
    "thousands of headers": [(f"x-{number}", "1") for number in range(5_000)],
    "the same header again and again": [("x-same", "1")] * 5_000,
    "headers of one letter": [("x", "")] * 10_000,
    "a long header": [("x-long", "a" * 60_000)],
    "a long credential": [("authorization", "Bearer " + "a" * 60_000)],
    "a token of dots": [("authorization", "Bearer " + "." * 60_000)],
    "a long list of what is accepted": [("accept", ",".join(["a/b;q=0.1"] * 6_000))],
    "a long state of a trace": [
        ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        ("tracestate", ",".join(f"k{n}=v" for n in range(6_000))),
    ],
    "many parameters": [(f"mcp-param-x{number}", "1") for number in range(2_000)],
    "a long cookie": [("cookie", "; ".join(["a=b"] * 10_000))],
}
