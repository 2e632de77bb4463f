"""A link to a live server, as far as its host sees it: what was said on it is remembered."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Raw

from comity.mcp import jsonrpc
from comity.mcp.conversation import Conversation
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mcpl import FeatureSet, FeatureUse, McplDeclaration
from comity.sessions.calls import Call, PendingMessage, ServerRequest
from comity.sessions.client_streams import ClientStream
from comity.telemetry.tracing import Headers

type Reply = Callable[[str, Any], Awaitable[Frame]]

SETS = {
    "memory.push": FeatureSet("memory.push", "Pushes", frozenset({FeatureUse.PUSH})),
    "memory.read": FeatureSet("memory.read", "Reads", frozenset({FeatureUse.BEFORE})),
    "files": FeatureSet("files", "Files", frozenset({FeatureUse.TOOLS}), is_scoped=True),
}
DECLARED = McplDeclaration("0.4", pushes=True, sets=SETS)


async def agree(method: str, params: object) -> Frame:
    return jsonrpc.make_result(1, {})


class LinkRoom:
    """A link of one era; `reply` is what the server answers."""

    def __init__(self, server: str = "srv", *, modern: bool = False) -> None:
        self.server = server
        self.initialize_result: Mapping[str, Raw] | None = None if modern else {}
        self.mgp = None
        self.is_open = True
        self.conversation: Conversation[PendingMessage] = Conversation()
        self.told: list[tuple[str, Any]] = []
        self.asked: list[tuple[str, Any]] = []
        self.sent: list[Frame] = []
        self.reply: Reply = agree
        self.refuses: Exception | None = None

    def send_message(self, frame: Frame) -> None:
        assert frame.params is not UNSET
        self.told.append((str(frame.method), jsonrpc.decode_value(frame.params)))

    async def request(
        self,
        method: str,
        params: object,
        headers: Headers = (),
        on_notification: Callable[[Frame], None] | None = None,
    ) -> Frame:
        self.asked.append((method, json.loads(bytes(jsonrpc.to_raw(params)))))
        return await self.reply(method, params)

    def send(self, call: Call, frame: Frame, headers: Headers) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append(frame)

    def updates(self) -> list[Any]:
        """What the server was told that it may do, each time."""
        said = [*self.told, *self.asked]
        return [params for method, params in said if method == "featureSets/update"]


class Asker:
    """A server's question, and what it was answered."""

    def __init__(self, link: LinkRoom, method: str, number: int = 1, **params: Any) -> None:
        self.frame = jsonrpc.make_request(number, method, params)
        self.answers: list[Frame] = []
        self.question = ServerRequest(self.frame, link, self.answers.append)  # type: ignore[arg-type]
        link.conversation.register_peer_request(self.question.server_request_id, self.question)

    @property
    def code(self) -> int | None:
        error = jsonrpc.error_of(self.answers[-1])
        return None if error is None else error.code

    @property
    def data(self) -> Any:
        error = jsonrpc.error_of(self.answers[-1])
        return None if error is None else error.data


def calling(name: str = "edit", **params: Any) -> tuple[Call, Frame]:
    """A call of a tool, and its request."""
    frame = jsonrpc.make_request("c-1", "tools/call", {"name": name, **params})
    return Call(frame, ClientStream(), None, 0), frame


def params_of(frame: Frame) -> Any:
    assert frame.params is not UNSET
    return jsonrpc.decode_value(frame.params)


async def breath() -> None:
    """Let everything go on that can."""
    for _ in range(10):
        await asyncio.sleep(0)
