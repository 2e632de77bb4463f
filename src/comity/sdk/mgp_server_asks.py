"""What a tool asks people while it runs, through whoever called it. (MGP §13.4)

Rule 1: nobody's silence is a yes: without an answer in time a confirmation is refused, and what
        else was asked for is not there. (D-28)
Rule 2: a client that cannot be asked is the same as one that says nothing.
Rule 3: a question is put once more when half its time is over, for notices can be lost.
"""

import asyncio
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from comity.sdk.mgp_server_peers import CURRENT, Request
from comity.wire import callbacks, jsonrpc
from comity.wire.callbacks import CANCEL, CONFIRM, Type
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Misconfigured
from comity.wire.negotiation import Extension

A_MINUTE: Final = timedelta(minutes=1)
MOST_OPEN: Final = 1_000


class Asks:
    """The open questions of a server; ask amid a tool call."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[object]] = {}

    async def confirm(self, message: str, *, within: timedelta = A_MINUTE) -> bool:
        """Whether somebody said yes."""
        said = await self._ask(Type.CONFIRMATION, message, (CONFIRM, CANCEL), within)
        return said == CONFIRM

    async def input(self, message: str, *, within: timedelta = A_MINUTE) -> str | None:
        said = await self._ask(Type.INPUT, message, (), within)
        return said if isinstance(said, str) else None

    async def select(
        self, message: str, options: Sequence[str], *, within: timedelta = A_MINUTE
    ) -> str | None:
        """One of the options, or None; nothing else is taken for an answer."""
        said = await self._ask(Type.SELECTION, message, options, within)
        return said if isinstance(said, str) and said in options else None

    async def notify(self, message: str) -> None:
        """Say something to the person; nobody answers."""
        request = CURRENT.get()
        if request is not None and Extension.BIDIRECTIONAL in request.extensions:
            told = self._question(request, Type.NOTIFICATION, message, (), A_MINUTE)
            await request.tell(callbacks.REQUEST, told)

    async def answered(self, request: Request) -> dict[str, object]:
        """Somebody answered; a question that is over takes no answer, and says so to nobody."""
        named = request.params.get("callback_id")
        if not isinstance(named, str):
            raise request.refused(INVALID_PARAMS, "callback_id is missing")
        waiting = self._open.get(named)
        if waiting is not None and not waiting.done():
            waiting.set_result(request.params.get("response"))
        return {}

    async def _ask(
        self, type: Type, message: str, options: Sequence[str], within: timedelta
    ) -> object:
        request = CURRENT.get()
        if request is None:
            raise Misconfigured("people can be asked while a tool runs, and at no other time")
        if Extension.BIDIRECTIONAL not in request.extensions:
            return None
        if len(self._open) >= MOST_OPEN:
            raise request.refused(EXHAUSTED, "too many questions are open")
        told = self._question(request, type, message, options, within)
        named = str(told["callback_id"])
        waiting = self._open[named] = asyncio.get_running_loop().create_future()
        try:
            for _ in range(2):
                await request.tell(callbacks.REQUEST, told)
                done, _late = await asyncio.wait({waiting}, timeout=within.total_seconds() / 2)
                if done:
                    return waiting.result()
            return None
        finally:
            del self._open[named]

    def _question(
        self,
        request: Request,
        type: Type,
        message: str,
        options: Sequence[str],
        within: timedelta,
    ) -> dict[str, object]:
        told: dict[str, object] = {
            "callback_id": f"cb-{secrets.token_hex(8)}",
            "request_id": request.context.request_id,
            "type": type,
            "message": message,
            "timeout_ms": within // timedelta(milliseconds=1),
            **({"options": list(options)} if options else {}),
        }
        try:
            callbacks.callback_in(jsonrpc.to_raw(told))
        except MalformedMessage as problem:
            raise Misconfigured(f"this cannot be asked: {problem}") from None
        return told
