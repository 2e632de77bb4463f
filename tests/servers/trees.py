"""Servers that leave processes behind in every way there is, and a gateway to be killed.

Each prints `ready PID` once its youngest is up, and takes no notice of the end of its input. The
leash that all of them hold tells when they are dead; an alarm ends what a failing test would leave.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from comity.servers.process.process import Containment, ServerCommand, ServerProcess
from tests.servers.witness import Leash

_DEAF = "[signal.signal(each, signal.SIG_IGN) for each in (1, 2, 15)]"
_WAIT = "signal.alarm(120)\nwhile True: signal.pause()"


def _forking(in_child: str) -> str:
    return f"""
ready, telling = os.pipe()
if os.fork() == 0:
    {in_child}
    {_DEAF}
    os.write(telling, b"%d" % os.getpid())
    signal.alarm(120)
    while True: signal.pause()
print("ready", os.read(ready, 20).decode(), flush=True)
"""


STAYING = {
    "plain": "print('ready', os.getpid(), flush=True)",
    "stubborn": f"{_DEAF}\nprint('ready', os.getpid(), flush=True)",
    "grandchild": _forking("pass"),
}
LEAVING = {
    "own session": _forking("os.setsid()"),
    "daemon": _forking("os.setsid(); os.fork() and os._exit(0)"),
}
TREES = STAYING | LEAVING


def tree(name: str, leash: Leash) -> str:
    """It exits with 3 when told to, and otherwise waits."""
    wait = "import sys\nsys.stdin.readline() == 'leave\\n' and os._exit(3)"
    return leash.hold(f"{TREES[name]}\n{wait}\n{_WAIT}")


async def _serve(containment: Containment, codes: list[str]) -> None:
    """Start them all, say `ready` and what each said, and then do nothing."""
    said: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in codes]
    servers = [
        await _start(containment, code, queue.put_nowait)
        for code, queue in zip(codes, said, strict=True)
    ]
    lines = [(await queue.get()).decode().removeprefix("ready ") for queue in said]
    print("ready", *lines, flush=True)
    await asyncio.Event().wait()
    del servers


async def _start(
    containment: Containment, code: str, on_line: Callable[[bytes], None]
) -> ServerProcess:
    command = ServerCommand((sys.executable, "-S", "-c", code), {}, containment=containment)
    return await ServerProcess.start(command, on_line, print)


if __name__ == "__main__":
    texts = [Path(name).read_text() for name in sys.argv[2:]]
    asyncio.run(_serve(cast("Containment", sys.argv[1]), texts))
