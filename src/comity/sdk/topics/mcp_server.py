"""An MCP SDK server object behind a participant; needs `comity[sdk]`."""

import asyncio
from typing import Any, Final, Self

from mcp import Client, MCPError
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.types import Request
from pydantic import RootModel, ValidationError

from comity.errors import INTERNAL_ERROR, Misconfigured, Unavailable
from comity.mcp import protocol as words
from comity.sdk.functions import MethodFailure
from comity.sdk.topics.events import Payload

_GOODBYE: Final = 10.0


class _MethodResult(RootModel[dict[str, Any]]):
    """The result of any method, unchanged."""


class McpServer:
    """A running server; use it in an `async with`."""

    def __init__(self, server: object) -> None:
        if not isinstance(server, Server | MCPServer):
            kind = type(server).__name__
            raise Misconfigured(
                f"a {kind} cannot be served: give a Server or MCPServer of the mcp package, "
                "or a mapping of async functions"
            )
        self._server: Server[Any] | MCPServer[Any] = server
        self._stop = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # It runs in its own task, so that a failure of the server does not end the participant.
        self._task = asyncio.create_task(self._run())
        await asyncio.wait({self._client, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_GOODBYE)
            self._task.cancel()

    async def answer(self, method: str, params: Payload) -> Payload | MethodFailure:
        if self._task is None or self._task.done():
            raise Unavailable("the server behind this participant has ended")
        session = self._client.result().session
        if method == words.PING:
            return {}
        if method == words.INITIALIZE:
            said = session.initialize_result
            assert said is not None
            return said.model_dump(by_alias=True, mode="json", exclude_none=True)
        try:
            asked = Request[dict[str, Any], str](method=method, params=dict(params))
            return (await session.send_request(asked, _MethodResult)).root
        except MCPError as error:
            return MethodFailure(error.error.code, error.error.message, error.error.data)
        except ValidationError:
            return MethodFailure(INTERNAL_ERROR.code, "the server answered with what is no result")

    async def _run(self) -> None:
        async with Client(self._server, mode="legacy") as client:
            self._client.set_result(client)
            await self._stop.wait()
