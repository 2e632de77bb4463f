"""The lightest stdio server there can be, well or sick: `python -S -E -I light.py NAME [ILLNESS]`.

It imports next to nothing, so that a hundred of them start quickly. It speaks the handshake era and
reads JSON by searching, which is enough for what the tests say to it.

Its tools: `say` gives back its arguments; `meet` answers when as many calls of it wait as its
argument `of` says, so that all of them were under way at once; `hold` never answers; `pour` first
says much that nobody asked for. It is of the `modern` era where that is said in the place of an
illness, which is one of: `hangs` at its start, `floods` after its list, prints `garbage`, has a
`bad_schema`,
`crashes` on every tenth call, `leaves` cleanly after its first call, is `stubborn` and stays when
its input has ended, leaves an `orphan` behind that has a session of its own.
"""

import os
import sys

NAME, ILLNESS = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
SCHEMA = '{"type":"int"}' if ILLNESS == "bad_schema" else '{"type":"object"}'
TOOLS = ",".join(
    f'{{"name":"{tool}","inputSchema":{schema}}}'
    for tool, schema in (
        ("say", '{"type":"object"}'),
        ("meet", SCHEMA),
        ("hold", SCHEMA),
        ("pour", SCHEMA),
    )
)
WHOLE = '"resultType":"complete","ttlMs":0,"cacheScope":"private",' if ILLNESS == "modern" else ""
DISCOVERED = f'{{{WHOLE}"supportedVersions":["2026-07-28"],"capabilities":{{"tools":{{}}}}}}'
HELLO = (
    '{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},'
    f'"serverInfo":{{"name":"{NAME}","version":"1"}}}}'
)
FLOOD = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}\n' * 500
GARBAGE = b'Listening on port 80...\n{"jsonrpc": "2.0", "id": 1, "res\n\xff\xfe\x00\x01\n{]}\n' * 20


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def answer(request: str, result: str) -> None:
    write(f'{{"jsonrpc":"2.0","id":{request},"result":{result}}}\n'.encode())


def refuse(request: str) -> None:
    unknown = '{"code":-32601,"message":"no such method"}'
    write(f'{{"jsonrpc":"2.0","id":{request},"error":{unknown}}}\n'.encode())


def said(arguments: str) -> str:
    heard = f'{{"by":"{NAME}","pid":{os.getpid()},"heard":{arguments}}}'
    text = '[{"type":"text","text":"said"}]'
    return f'{{{WHOLE}"content":{text},"structuredContent":{heard}}}'


def member(line: str, name: str) -> str:
    """The value that follows a name: a number, a word, or a flat object."""
    rest = line.partition(f'"{name}":')[2].lstrip()
    end = rest.find("}") + 1 if rest.startswith("{") else min(map(len, _ends(rest)))
    return rest[:end].strip('"')


def _ends(rest: str) -> list[str]:
    return [rest.partition(",")[0], rest.partition("}")[0]]


def call(line: str, calls: int, waiting: list[tuple[str, str]]) -> None:
    request, tool, arguments = (member(line, name) for name in ("id", "name", "arguments"))
    if ILLNESS == "crashes" and calls % 10 == 0:
        os._exit(3)
    if tool == "pour":
        write(FLOOD + GARBAGE)
    if tool in ("say", "pour"):
        answer(request, said(arguments))
    elif tool == "meet":
        waiting.append((request, arguments))
        if len(waiting) >= int(member(arguments, "of")):
            for each, heard in waiting:
                answer(each, said(heard))
            waiting.clear()
    if ILLNESS == "leaves":
        os._exit(0)


def take(line: str) -> None:
    """Answer all that is no call of a tool."""
    method, request = member(line, "method"), member(line, "id")
    if method == ("server/discover" if ILLNESS == "modern" else "initialize"):
        answer(request, DISCOVERED if ILLNESS == "modern" else HELLO)
    elif method == "tools/list":
        answer(request, f'{{{WHOLE}"tools":[{TOOLS}]}}')
        while ILLNESS == "floods":
            write(FLOOD)
    elif method == "ping":
        answer(request, "{}")
    elif request:
        refuse(request)


def serve() -> None:
    calls, waiting, rest = 0, list[tuple[str, str]](), b""
    while piece := os.read(0, 65536):
        *lines, rest = (rest + piece).split(b"\n")
        for line in map(bytes.decode, lines):
            if member(line, "method") == "tools/call":
                calls += 1
                call(line, calls, waiting)
            else:
                take(line)


def pretend_to_be_ill() -> None:
    """What is done before anything is read."""
    if ILLNESS == "garbage":
        write(GARBAGE)
        while os.read(0, 65536):
            write(GARBAGE)
    elif ILLNESS == "hangs":
        while os.read(0, 65536):
            pass
    elif ILLNESS == "orphan" and os.fork() == 0:
        # A daemon as in the books: a session of its own, and a father who is gone.
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sleep", [f"sleep-{NAME}", "600"])  # noqa: S606
        os._exit(0)


def linger() -> None:
    """Go on though the input has ended."""
    while True:
        os.read(os.pipe()[0], 1)


if __name__ == "__main__":
    os.write(2, f"{NAME} begins\n".encode())
    pretend_to_be_ill()
    serve()
    if ILLNESS == "stubborn":
        linger()
