"""How a server is brought to its end: its calls finish, it is asked to go, its links are closed."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from comity.kernel.health import ask_of_mgp, manages_lifecycle
from comity.kernel.pulse import Pulse
from comity.kernel.reached import Reached
from comity.wire import jsonrpc
from comity.wire.errors import Unavailable
from comity.wire.jsonrpc import UNSET
from comity.wire.lifecycle import SHUTDOWN, Reason

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02
FAREWELL: Final = timedelta(seconds=5)
"""What a server gets that was asked to go, after its last call, before it is made to."""


async def drain(name: str, pulse: Pulse, is_over: Callable[[], bool]) -> None:
    """Let the calls under way finish; what has not when it is over is ended with an error.

    Nobody knows whether such a call was carried out, so it is not said to be worth a retry.
    """
    while calls := pulse.calls:
        if is_over():
            break
        await asyncio.sleep(LOOK_SECONDS)
    because = Unavailable(f"server {name!r} was stopped before it had answered")
    for call in calls:
        if call.link is not None:
            call.link.forsake(call.minted, jsonrpc.to_raw("the server is being stopped"))
        call.failed(because)


async def part(reached: Reached, reason: Reason, within: timedelta = FAREWELL) -> None:
    """Ask a server that knows how to shut down to do so, and give it the time. (MGP §11.4)"""
    shared = reached.own or reached.modern
    if shared is None or not shared.link.is_open or not manages_lifecycle(shared.link):
        return
    wish = {"reason": reason, "timeout_ms": within // timedelta(milliseconds=1)}
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(within.total_seconds()):
            answer = await ask_of_mgp(shared.link, SHUTDOWN, wish, modern=reached.own is None)
            if answer.error is UNSET:
                await reached.gone.wait()
            else:
                log.info("server %r does not shut down when asked", reached.name)


async def close_all(reached: Reached, pulse: Pulse) -> None:
    """End every link, those of sessions too, the way MCP says for its transport. (MCP §4.3)"""
    await reached.let_go()
    await asyncio.gather(*(link.close() for link in list(pulse.links)))
