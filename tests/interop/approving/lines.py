"""How a Python client is told to call a tool, and says what came of it: a line of JSON for each.

Runs inside the client's own process and environment, so that it imports nothing but Python's own.
An order is `{"who", "id", "url", "key", "mode", "tool", "seconds", "patience", "progress",
"elicits"}`; what is asked amid a call is said as `{"asked": id}` and answered by `{"who", "answer":
id, "result": {...}}`. A client ends by `{"kill": who}`, without a word.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import IO, Any, cast

type Order = dict[str, Any]
type Said = dict[str, Any]
type Ask = Callable[[], Awaitable[dict[str, Any]]]
type Call = Callable[[Order, Ask], Awaitable[Said]]

REFUSAL = "dev.comity/refusal"


def drive(call: Call) -> None:
    """The whole program of a client: one that starts clients, each in a process of its own.

    To import an SDK takes seconds; a process that begins as a copy of one that has need not.
    """
    clients: dict[str, tuple[int, IO[bytes]]] = {}
    while line := sys.stdin.buffer.readline():
        said = json.loads(line)
        if "kill" in said:
            process, _ = clients.pop(said["kill"])
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            continue
        if said["who"] not in clients:
            clients[said["who"]] = _begin(call, [pipe for _, pipe in clients.values()])
        _, pipe = clients[said["who"]]
        pipe.write(line)
        pipe.flush()


def _begin(call: Call, others: list[IO[bytes]]) -> tuple[int, IO[bytes]]:
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(reading)
        return process, os.fdopen(writing, "wb")
    os.close(writing)
    for other in others:
        # Each hears of its own end by that of its pipe.
        os.close(other.fileno())
    asyncio.run(_drive(call, os.fdopen(reading, "rb")))
    os._exit(0)


async def _drive(call: Call, orders: IO[bytes]) -> None:
    answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
    under_way: set[asyncio.Task[None]] = set()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), orders)
    while line := await reader.readline():
        said = json.loads(line)
        if "answer" in said:
            answers[said["answer"]].set_result(said["result"])
            continue
        answers[said["id"]] = loop.create_future()
        task = asyncio.create_task(_carry_out(call, said, answers[said["id"]]))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


async def _carry_out(call: Call, order: Order, answer: asyncio.Future[dict[str, Any]]) -> None:
    async def ask() -> dict[str, Any]:
        _say({"asked": order["id"]})
        return await answer

    try:
        async with asyncio.timeout(order["seconds"]):
            said = await call(order, ask)
    except Exception as error:
        first = _first(error)
        kind = "late" if isinstance(first, TimeoutError) else "failed"
        said = {"kind": kind, "text": f"{type(first).__name__}: {first}"[:500]}
    _say({"id": order["id"], "said": said})


def worded(text: str, is_error: bool, meta: dict[str, Any] | None) -> Said:
    """A result of a tool in the words of this matrix."""
    refusal = (meta or {}).get(REFUSAL)
    if refusal is not None:
        return {"kind": refusal["error_type"], "text": text}
    return {"kind": "failed" if is_error else "ok", "text": text}


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[Exception]", error).exceptions[0]
    return error


def _say(said: Said) -> None:
    # One write, so that what several say at once stays apart.
    os.write(1, json.dumps(said).encode() + b"\n")
