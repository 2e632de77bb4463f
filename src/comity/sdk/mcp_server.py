"""A server object of the MCP SDK as what stands behind a participant; needs `comity[sdk]`.

It runs in this process, as with the SDK's own client: one session for all who ask in the topic.
What a server asks of its client (sampling, elicitation) has nobody to go to, and is refused.
"""

import asyncio
from typing import Any, Final, Self

from mcp import Client, MCPError
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.types import Request
from pydantic import RootModel, ValidationError

from comity.sdk.events import Payload
from comity.sdk.serving import Failure
from comity.wire import mcp as words
from comity.wire.errors import INTERNAL_ERROR, Misconfigured, Unavailable

_GOODBYE: Final = 10.0


class _Result(RootModel[dict[str, Any]]):
    """Whatever a method answers, as it is."""


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
        # In a task of its own, so that a server that breaks ends itself and not whoever joined.
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

    async def answer(self, method: str, params: Payload) -> Payload | Failure:
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
            return (await session.send_request(asked, _Result)).root
        except MCPError as error:
            return Failure(error.error.code, error.error.message, error.error.data)
        except ValidationError:
            return Failure(INTERNAL_ERROR.code, "the server answered with what is no result")

    async def _run(self) -> None:
        async with Client(self._server, mode="legacy") as client:
            self._client.set_result(client)
            await self._stop.wait()
