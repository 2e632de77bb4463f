"""The HTTP application: which door a path leads to, and what is said at a closed one."""

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from comity.surfaces import doorway
from comity.surfaces.doorway import Doorway, Receive, Scope, Send
from comity.wire import jsonrpc
from comity.wire.errors import INTERNAL_ERROR, NOTHING_HERE, MalformedMessage, Unavailable

log = logging.getLogger(__name__)


class Door(Protocol):
    """Something at a path."""

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None: ...


async def _permitting(
    scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
) -> None:
    await doorway.permit(send, headers)


class Gateway:
    """The ASGI application: raw, because every call passes here."""

    def __init__(self, way: Doorway, doors: dict[str, Door], is_ready: Callable[[], bool]) -> None:
        self._way = way
        self._doors = doors
        self._is_ready = is_ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            if len(headers) != len(scope["headers"]):
                doorway.refuse_repeated(scope["headers"])
            self._way.check(headers)
            origin = headers.get(b"origin")
            door = self._doors.get(scope["path"])
            if origin is not None and self._way.lets_read(origin):
                send = doorway.shared_with(send, origin)
                if b"access-control-request-method" in headers:
                    door = _permitting
            if door is not None:
                await door(scope, headers, receive, send)
            else:
                await self._elsewhere(scope["path"], send)
        except (MalformedMessage, Unavailable) as error:
            await doorway.refuse(send, error)
        except Exception:
            log.exception("a request ended in a bug of ours")
            oops = jsonrpc.failure(None, INTERNAL_ERROR, "the gateway failed; see its log")
            with contextlib.suppress(RuntimeError):
                # The response had begun; there is no second one.
                await doorway.answer(send, 500, jsonrpc.encode(oops))

    async def _elsewhere(self, path: str, send: Send) -> None:
        if path == "/health":
            await doorway.answer(send, 200, b'{"status":"ok"}')
        elif path == "/ready":
            ready = self._is_ready()
            body = b'{"status":"ready"}' if ready else b'{"status":"starting"}'
            await doorway.answer(send, 200 if ready else 503, body)
        else:
            # Which servers there are is for those to know who may use them.
            raise MalformedMessage(
                "nothing is here; all servers are at /mcp, one of them at /servers/{id}/mcp",
                NOTHING_HERE,
            )
