"""A server's demand for one more scope for one tool, as MCP prescribes it."""

from collections.abc import Awaitable, Callable
from typing import Any


class StepUp:
    """Refuses the tool `write` to tokens without the scope of that name."""

    def __init__(self, app: Any, port: int, may_write: Callable[[str], Awaitable[bool]]) -> None:
        self._app = app
        self._port = port
        self._may_write = may_write

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if b'"name":"write"' in body.replace(b": ", b":") and not await self._is_allowed(scope):
            challenge = (
                'Bearer error="insufficient_scope", scope="tools write", resource_metadata='
                f'"http://127.0.0.1:{self._port}/.well-known/oauth-protected-resource/mcp"'
            )
            headers = [(b"www-authenticate", challenge.encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body"})
            return
        is_read = False

        async def again() -> Any:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)

    async def _is_allowed(self, scope: Any) -> bool:
        shown = dict(scope["headers"]).get(b"authorization", b"").decode().partition(" ")[2]
        return await self._may_write(shown)
