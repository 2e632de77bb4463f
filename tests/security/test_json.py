"""Attack 14 of `docs/design/security.md` §1.5: JSON that two readers would read differently.

Each text either is refused, and then nothing of it reaches the server, or it is taken, and then the
server is sent exactly what the gateway read: one line of JSON that every reader reads alike.
"""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.support.upstream import Upstream, scripted
from tests.support.visitor import BOTH, MODERN, Visitor, at, request, visiting

CALL = '"jsonrpc":"2.0","id":1,"method":"tools/call"'
NAME = '"params":{"name":"plain"}'
DIGITS = "9" * 4000


def nested(depth: int) -> str:
    """A call nested so deep, its own two levels included."""
    inside = "[" * (depth - 3) + "]" * (depth - 3)
    return f'{{{CALL},"params":{{"name":"plain","arguments":{{"a":{inside}}}}}}}'


REFUSED = {
    "repeated-method": f'{{{CALL},"method":"tools/list",{NAME}}}',
    "repeated-id": f'{{{CALL},"id":2,{NAME}}}',
    "repeated-params": f"{{{CALL},{NAME},{NAME}}}",
    "repeated-by-escape": f'{{{CALL},"m\\u0065thod":"tools/list",{NAME}}}',
    "another-case": f'{{{CALL},"Method":"tools/list",{NAME}}}',
    "another-case-of-params": f'{{{CALL},"PARAMS":{{}},{NAME}}}',
    "long-s": f'{{{CALL},"param\u017f":{{}},{NAME}}}',
    "kelvin-sign": f'{{{CALL},"\u212aey":1,"jsonRPC":"2.0",{NAME}}}',
    "nan": f'{{{CALL},"params":{{"name":"plain","n":NaN}}}}',
    "infinity": f'{{{CALL},"params":{{"name":"plain","n":-Infinity}}}}',
    "comment": f"{{{CALL},/* */{NAME}}}",
    "single-quotes": "{'jsonrpc':'2.0'}",
    "trailing-comma": f"{{{CALL},{NAME},}}",
    "two-messages": f"{{{CALL},{NAME}}}{{{CALL},{NAME}}}",
    "batch": f"[{{{CALL},{NAME}}}]",
    "too-deep": nested(65),
    "absurdly-deep": nested(200_000),
    "unclosed": "[" * 100_000,
    "id-true": f'{{"jsonrpc":"2.0","id":true,"method":"tools/call",{NAME}}}',
    "id-fraction": f'{{"jsonrpc":"2.0","id":1.5,"method":"tools/call",{NAME}}}',
    "id-float": f'{{"jsonrpc":"2.0","id":1.0,"method":"tools/call",{NAME}}}',
    "id-exponent": f'{{"jsonrpc":"2.0","id":1e0,"method":"tools/call",{NAME}}}',
    "id-null": f'{{"jsonrpc":"2.0","id":null,"method":"tools/call",{NAME}}}',
    "id-object": f'{{"jsonrpc":"2.0","id":{{}},"method":"tools/call",{NAME}}}',
    "id-beyond-doubles": f'{{"jsonrpc":"2.0","id":{2**53 + 1},"method":"tools/call",{NAME}}}',
    "id-of-thousands-of-digits": f'{{"jsonrpc":"2.0","id":{DIGITS},"method":"tools/call",{NAME}}}',
    "id-of-megabytes": f'{{"jsonrpc":"2.0","id":"{"x" * 2**20}","method":"tools/call",{NAME}}}',
    "question-and-answer": f'{{{CALL},"result":{{}},{NAME}}}',
    "another-version": f'{{"jsonrpc":"1.0","id":1,"method":"tools/call",{NAME}}}',
    "no-version": f'{{"id":1,"method":"tools/call",{NAME}}}',
    "surrogate-in-the-method": f'{{"jsonrpc":"2.0","id":1,"method":"\\ud800",{NAME}}}',
}
REFUSED_BYTES = {
    "byte-order-mark": b"\xef\xbb\xbf" + f"{{{CALL},{NAME}}}".encode(),
    "utf-16": f"{{{CALL},{NAME}}}".encode("utf-16"),
    "latin-1": f'{{{CALL},"params":{{"name":"plain","a":"\xe9"}}}}'.encode("latin-1"),
    "overlong-slash": f'{{{CALL},"params":{{"name":"plain","a":"'.encode() + b'\xc0\xaf"}}',
    "raw-surrogate": f'{{{CALL},"params":{{"name":"plain","a":"'.encode() + b'\xed\xa0\x80"}}',
    "raw-control": f'{{{CALL},"params":{{"name":"plain","a":"\x01"}}}}'.encode(),
    "nul-after": f"{{{CALL},{NAME}}}\0".encode(),
    "nothing": b" ",
}
TAKEN = {
    "deep-enough": nested(64),
    "integer-of-thousands-of-digits": (
        f'{{{CALL},"params":{{"name":"plain","arguments":{{"n":{DIGITS}}}}}}}'
    ),
    "integer-beyond-doubles": f'{{{CALL},"params":{{"name":"plain","n":{2**64 + 1}}}}}',
    "fraction-as-written": f'{{{CALL},"params":{{"name":"plain","n":1.10e+2}}}}',
    "nul-in-a-string": f'{{{CALL},"params":{{"name":"plain","n":"\\u0000"}}}}',
    "prototype": f'{{{CALL},"params":{{"name":"plain","__proto__":{{"a":1}}}}}}',
    "white-space": f'{{ {CALL} ,\r\n\t{NAME[:-1]},\n"a":\r[\n1 ]\n}}\n}}',
    "escaped-members": f'{{"jsonrpc":"2.0","id":1,"m\\u0065thod":"tools/call",{NAME}}}',
    "unknown-member": f'{{{CALL},{NAME},"trace":"kept"}}',
}


@dataclass
class Scene:
    server: Upstream
    visitor: Visitor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncGenerator[Scene]:
    async with scripted(modern=True) as server, visiting(at(server.url)) as visitor:
        await visitor.greet()
        yield Scene(server, visitor)


async def post(scene: Scene, body: bytes, modern: bool) -> tuple[int, list[bytes]]:
    """The status of a body, and every call that the server was sent for it."""
    before = len(scene.server.of("tools/call"))
    headers = [("content-type", "application/json"), ("accept", BOTH)]
    if modern:
        named = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "plain"}
        headers += named.items()
    else:
        headers += scene.visitor.session.items()
    reply = await scene.visitor.send("POST", headers, body)
    await reply.body()
    return reply.status, [each.body for each in scene.server.of("tools/call")[before:]]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_BYTES])
@pytest.mark.requirement("MCP-2.1-jsonrpc", "MCP-2.1-id")
async def test_attack_14_what_could_be_read_twice_reaches_nobody(
    scene: Scene, name: str, modern: bool
) -> None:
    body = REFUSED_BYTES[name] if name in REFUSED_BYTES else REFUSED[name].encode()
    assert await post(scene, body, modern) == (400, [])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", TAKEN)
async def test_attack_14_what_is_taken_is_sent_on_as_it_was_read(scene: Scene, name: str) -> None:
    status, sent = await post(scene, TAKEN[name].encode(), modern=False)
    assert status == 200
    (body,) = sent
    assert not {10, 13} & set(body)
    strict = json.loads(body, object_pairs_hook=_no_repetition, parse_int=str, parse_float=str)
    read = json.loads(TAKEN[name], parse_int=str, parse_float=str)
    assert {**strict, "id": "1"} == read


def _no_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs), "a key was repeated on the way"
    return dict(pairs)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "params",
    [
        '{"name":"plain","name":"other"}',
        '{"name":"other","n\\u0061me":"plain"}',
        '{"name":"plain","_meta":{"a":1},"_meta":{}}',
        '["plain"]',
        '"plain"',
        '{"name":"\\ud800"}',
        '{"name":["plain"]}',
    ],
)
async def test_attack_14_parameters_that_are_judged_are_read_in_one_way_only(
    scene: Scene, params: str
) -> None:
    """Where the gateway chooses by a name, two names, or none, are refused."""
    body = f'{{{CALL},"params":{params}}}'.encode()
    _, sent = await post(scene, body, modern=True)
    assert sent == []
    merged = scene.visitor.other("/mcp")
    await merged.greet()
    headers = [("content-type", "application/json"), ("accept", BOTH), *merged.session.items()]
    before = len(scene.server.of("tools/call"))
    reply = await merged.send("POST", headers, body)
    assert "error" in (await reply.frames())[0]
    assert len(scene.server.of("tools/call")) == before


@pytest.mark.asyncio(loop_scope="module")
async def test_attack_14_a_gateway_that_was_sent_all_this_still_serves(scene: Scene) -> None:
    reply = await scene.visitor.post(request("fine", "tools/call", {"name": "plain"}))
    assert (await reply.json())["id"] == "fine"
