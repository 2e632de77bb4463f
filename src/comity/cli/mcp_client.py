"""The MCP client of commands: the session of the SDK, for code that blocks."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final, Self

from comity.cli.api_client import ANSWER_BYTES, ApiClient
from comity.errors import TIMEOUT, UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.sdk.mcp_client import McpClientSession
from comity.toolkit.text import object_members

type Frame = dict[str, Any]

CAPABILITIES: Final[Frame] = {"elicitation": {"form": {}, "url": {}}}
PATH: Final = "/mcp"


class CliMcpSession:
    """One session, from `initialize` to its end. Use it in a `with`.

    It blocks on an event loop of its own. That loop handles no signals: an interrupt ends a
    question at the terminal at once.
    """

    def __init__(
        self,
        gateway: ApiClient,
        timeout: timedelta,
        on_notification: Callable[[str, Frame], None],
        answer: Callable[[Frame], Awaitable[Frame | None]],
    ) -> None:
        self._gateway = gateway
        self._on_notification = on_notification
        self._answer = answer
        self._ends = time.monotonic() + timeout.total_seconds()
        self._terminal = asyncio.Lock()
        self._runner = asyncio.Runner()
        self._session = McpClientSession(
            gateway.url + PATH,
            gateway.credential,
            self._handle_message,
            self._result_for,
            ANSWER_BYTES,
        )

    def __enter__(self) -> Self:
        opening = self._session.open(
            CAPABILITIES, "comity-call", within=self._seconds_left(), listens=False
        )
        try:
            self._run(opening)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the session, and the loop."""
        try:
            self._run(self._session.close())
        finally:
            self._runner.close()

    def request(self, method: str, params: Frame) -> Frame:
        """The answer, with its `result` or `error`.

        Earlier notifications and requests are passed on and answered. Raises Unavailable if the
        gateway is gone, and TimeoutError after the time limit. An interrupted request is withdrawn.
        """
        id = self._session.next_id()
        request = self._runner.get_loop().create_task(
            self._session.request(
                method, params, self._handle_message, named=id, within=self._seconds_left()
            )
        )
        try:
            return _members(self._run(request))
        except KeyboardInterrupt:
            # Ended first, so that nothing typed from now on is taken for an answer.
            request.cancel()
            self._run(self._session.withdraw(id))
            raise

    def _run[T](self, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
        try:
            return self._runner.get_loop().run_until_complete(work)
        except MalformedMessage as problem:
            raise Unavailable(f"the gateway sent a broken stream: {problem}") from None
        except Unavailable as problem:
            if problem.fault is TIMEOUT:
                raise TimeoutError from None
            if problem.fault is UNAUTHENTICATED:
                raise self._gateway.key_needed_error("it is not known, or counts no more") from None
            if isinstance(problem.__cause__, OSError):
                raise self._gateway.unreachable(problem.__cause__) from None
            raise

    async def _handle_message(self, frame: jsonrpc.Frame) -> None:
        said = _members(frame)
        self._on_notification(str(said.get("method")), object_members(said.get("params")))

    async def _result_for(self, frame: jsonrpc.Frame) -> Mapping[str, object] | None:
        said = _members(frame)
        if said.get("method") == protocol.PING:
            return {}
        if said.get("method") != protocol.ELICIT:
            return None
        # One question at a time has the terminal. A person who answers may take their time.
        async with self._terminal:
            began = time.monotonic()
            try:
                return await self._answer(object_members(said.get("params")))
            finally:
                self._ends += time.monotonic() - began

    def _seconds_left(self) -> timedelta:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return timedelta(seconds=left)


def _members(frame: jsonrpc.Frame) -> Frame:
    return object_members(json.loads(jsonrpc.encode_frame(frame)))
