"""An agent that speaks MGP with a gateway: it finds tools, calls them and answers questions."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self, cast
from urllib.parse import quote

from comity.approvals import answers
from comity.approvals.answers import CANCEL_OPTION, CallbackRequest, CallbackType, decode_callback
from comity.catalog import discovery_messages
from comity.errors import ACCESS_DENIED, MalformedMessage, Unavailable
from comity.events import model
from comity.gateway.retries import RetryPlan, failure_from_server, retry_delay
from comity.mcp import mgp, mgp_streaming, protocol
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import LIST_SERVERS, MgpExtension, format_timestamp, offer_extensions
from comity.sdk.agent_results import (
    AgentCallResult,
    AgentCallStream,
    AgentEvent,
    AgentRefusal,
    AgentSubscription,
    called_in,
    happened_in,
    piece_in,
    refused_in,
    result_in,
)
from comity.sdk.mcp_client import McpClientSession
from comity.sdk.topics.connection import Token
from comity.sdk.topics.state import BoundedOwnerCache
from comity.servers.registration import rules

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 32
MOST_REMEMBERED: Final = 1_000

type Answer = Callable[[CallbackRequest], Awaitable[object]]
type Respond = Callable[[str, object], Awaitable[None]]


class AgentCallbackHandler:
    """The questions of one session, each in a task of its own."""

    def __init__(self, answer: Answer | None, respond: Respond) -> None:
        self._answer = answer
        self._respond = respond
        self._asked: BoundedOwnerCache[asyncio.Task[object]] = BoundedOwnerCache(
            MOST_REMEMBERED, MOST_REMEMBERED * 1_000
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, frame: Frame) -> None:
        """Start to answer a question. Without a function, people answer it at the gateway."""
        if self._answer is None or len(self._tasks) >= MOST_AT_ONCE:
            return
        try:
            question = decode_callback(frame.params)
        except MalformedMessage as problem:
            log.info("A callback was ignored: %s", problem)
            return
        task = asyncio.create_task(self._reply(question, self._answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in (waiting := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _reply(self, question: CallbackRequest, answer: Answer) -> None:
        thinking = self._asked.get(question.id)
        if thinking is None:
            thinking = asyncio.create_task(_said(question, answer))
            self._asked.put(question.id, thinking)
        said = await asyncio.shield(thinking)
        if question.type is not CallbackType.NOTIFICATION:
            await self._respond(question.id, said)


async def _said(question: CallbackRequest, answer: Answer) -> object:
    try:
        async with asyncio.timeout(question.timeout.total_seconds()):
            return await answer(question)
    except Exception:
        log.exception("a callback was not answered by the agent's function")
        return CANCEL_OPTION if question.type is CallbackType.CONFIRMATION else None


MOST_PAGES: Final = 1_000

type Verdict = Literal["accept", "decline", "cancel"]


@dataclass(frozen=True, slots=True)
class AgentApprovalRequest:
    """One question that waits. `whole` is all that the gateway says of it."""

    id: str
    kind: str = ""
    server: str = ""
    tool: str = ""
    asker: str = ""
    state: str = ""
    arguments: object = None
    whole: Mapping[str, Any] = field(default_factory=dict[str, Any])


class AgentApprovalInbox:
    """The pending approval requests of other principals that this agent may see."""

    def __init__(self, line: McpClientSession) -> None:
        self._line = line

    async def __aiter__(self) -> AsyncIterator[AgentApprovalRequest]:
        """Yield the pending requests, the oldest first. Raises Unavailable, MalformedMessage."""
        cursor = ""
        for _ in range(MOST_PAGES):
            page = await self._line.api(
                "GET", f"approvals?cursor={quote(cursor)}" if cursor else "approvals"
            )
            if isinstance(page, AgentRefusal):
                raise Unavailable(f"the approvals cannot be listed: {page.reason}", ACCESS_DENIED)
            for each in cast("list[dict[str, Any]]", page.get("approvals") or []):
                yield _ask(each)
            cursor = str(page.get("next") or "")
            if not cursor:
                return

    async def approve(
        self, id: str, reason: str = "", **content: object
    ) -> AgentApprovalRequest | AgentRefusal:
        """Let the call of the request run once, with its arguments; `content` fills in a form."""
        return await self._answer(id, "accept", reason, content)

    async def deny(self, id: str, reason: str = "") -> AgentApprovalRequest | AgentRefusal:
        return await self._answer(id, "decline", reason, {})

    async def _answer(
        self, id: str, verdict: Verdict, reason: str, content: Mapping[str, object]
    ) -> AgentApprovalRequest | AgentRefusal:
        body: dict[str, object] = {"verdict": verdict, "reason": reason}
        if content:
            body["content"] = dict(content)
        said = await self._line.api("POST", f"approvals/{quote(id, safe='')}/answer", body)
        return said if isinstance(said, AgentRefusal) else _ask(said)


def _ask(fields: Mapping[str, Any]) -> AgentApprovalRequest:
    names = ("id", "kind", "server", "tool", "requester", "state")
    id, kind, server, tool, asker, state = (str(fields.get(name) or "") for name in names)
    return AgentApprovalRequest(
        id, kind, server, tool, asker, state, fields.get("arguments"), fields
    )


MOST_RETRIES: Final = 5
_SOONEST: Final = timedelta(milliseconds=100)
_LATEST: Final = timedelta(seconds=10)
WITHIN: Final = timedelta(seconds=60)
MOST_SUBSCRIPTIONS: Final = 32
MOST_EARLY: Final = 64
_RETRIES: Final = RetryPlan(idempotent=True, max_retries=MOST_RETRIES)
"""The gateway calls nothing worth a retry that may have run: what it does may be repeated."""

type Found = dict[str, Any] | AgentRefusal


class Agent:
    """One session at a gateway; use it in an `async with`.

    `url` is the MCP endpoint of the gateway (`https://host/mcp`). `token` is an API key, or a
    function that returns one. `answer` answers the questions that tools ask during a call.
    """

    def __init__(
        self, url: str, token: Token = "", *, answer: Answer | None = None, name: str = "agent"
    ) -> None:
        self._line = McpClientSession(url, token, self._hear)
        self._callbacks = AgentCallbackHandler(answer, self._respond)
        self._name = name
        self._subscriptions: dict[str, AgentSubscription] = {}
        self._early: deque[tuple[str, AgentEvent]] = deque(maxlen=MOST_EARLY)
        self.extensions: frozenset[str] = frozenset()
        # The pending approval requests of other principals.
        self.inbox = AgentApprovalInbox(self._line)

    def __repr__(self) -> str:
        return f"Agent({self._name!r}, {self._line!r})"

    async def __aenter__(self) -> Self:
        try:
            hello = await self._line.open({"mgp": offer_extensions(MgpExtension)}, self._name)
            # A gateway that refuses `initialize` sends no result, and `result_in` raises.
            said = result_in(hello).get("capabilities", {}).get("mgp", {})
            self.extensions = frozenset(map(str, said.get("extensions", ())))
        except BaseException:
            await self._line.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._callbacks.close()
        await self._line.close()

    async def ask(
        self, method: str, params: Mapping[str, object], within: timedelta = WITHIN
    ) -> Found:
        """Send a request of any method. Raises Unavailable, MalformedMessage."""
        answer = await self._line.request(method, params, self._hear, within=within)
        refused = refused_in(answer)
        return result_in(answer) if refused is None else refused

    async def discover(self, query: str, **more: object) -> Found:
        """Search for tools, the best first. (MGP §16.5)"""
        return await self.ask(discovery_messages.DISCOVER_METHOD, {"query": query, **more})

    async def request_tools(self, capabilities: Sequence[str], **more: object) -> Found:
        """Add tools for a task to this session. (MGP §16.6)"""
        wanted = {"reason": "capability_gap", "requirements": {"capabilities": [*capabilities]}}
        return await self.ask(discovery_messages.REQUEST_METHOD, {**wanted, **more})

    async def session_tools(self) -> Found:
        """The tools in the context of this session, and their token costs. (MGP §16.7)"""
        return await self.ask(discovery_messages.SESSION_METHOD, {})

    async def evict(self, *tools: str, reason: str = "") -> Found:
        return await self.ask(
            discovery_messages.EVICT_METHOD, {"tools": [*tools], "reason": reason}
        )

    async def servers(self, **wanted: object) -> Found:
        """The servers that this agent may see and that match the filter. (MGP §15.2)"""
        return await self.ask(LIST_SERVERS, {"filter": wanted} if wanted else {})

    async def register(self, id: str, **server: object) -> Found:
        """Register a server, where an operator allows it. (MGP §15.4)"""
        return await self.ask(rules.REGISTER_METHOD, {"id": id, **server})

    async def deregister(self, id: str, reason: str = "no_longer_needed") -> Found:
        return await self.ask(rules.DEREGISTER_METHOD, {"id": id, "reason": reason})

    async def ping(self) -> Found:
        return await self.ask(mgp.HEALTH_PING, {"timestamp": format_timestamp(datetime.now(UTC))})

    async def health(self) -> Found:
        """The health of the gateway. The names of its `resources` and `checks` may change."""
        return await self.ask(mgp.HEALTH_STATUS, {})

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        within: timedelta | None = None,
        fallback: bool = True,
        patience: timedelta = timedelta(0),
    ) -> AgentCallResult | AgentRefusal:
        """Call a tool, retry where that is allowed, then call its fallback. (MGP §14.6)

        `patience` is how long the agent waits for the approval of a person.
        """
        params = {"name": tool, "arguments": dict(arguments or {})}
        made, until = 0, time.monotonic() + patience.total_seconds()
        while True:
            answer = await self._line.request(protocol.CALL_TOOL, params, self._hear, within=within)
            refused = refused_in(answer, made + 1)
            if refused is None:
                return called_in(tool, answer, made + 1)
            if refused.awaits_approval and time.monotonic() < until:
                # The same call finds the answer; until there is one, it is no attempt.
                await asyncio.sleep(_between(refused.retry_after).total_seconds())
                continue
            chance = random.random()  # noqa: S311 - spreads a herd
            wait = retry_delay(_RETRIES, failure_from_server(answer), made, chance)
            if wait is None:
                break
            log.info("%s is called again in %s: %s", tool, wait, refused.reason)
            await asyncio.sleep(wait.total_seconds())
            made += 1
        if refused.retryable and refused.fallback_tool and fallback:
            return await self.call(refused.fallback_tool, arguments, within=within, fallback=False)
        return refused

    def stream(self, tool: str, arguments: Mapping[str, object] | None = None) -> AgentCallStream:
        """Call a tool and receive its chunks and progress while it runs. (MGP §12)"""
        id = self._line.next_id()
        stream = AgentCallStream(
            lambda reason: self.ask(mgp_streaming.CANCEL, {"request_id": id, "reason": reason})
        )

        async def hear(frame: Frame) -> None:
            told = piece_in(frame)
            await (self._hear(frame) if told is None else stream.take(told))

        async def run() -> AgentCallResult | AgentRefusal:
            wish = {"stream": True}
            params = {"name": tool, "arguments": dict(arguments or {}), mgp_streaming.MEMBER: wish}
            answer = await self._line.request(protocol.CALL_TOOL, params, hear, named=id)
            refused = refused_in(answer)
            return called_in(tool, answer) if refused is None else refused

        return stream.begin(asyncio.create_task(run()))

    async def subscribe(self, *channels: str, min_severity: str = "debug") -> AgentSubscription:
        """Subscribe to channels, patterns (`tool.*`) or all. Raises Unavailable. (MGP §13.2)"""
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise Unavailable(f"an agent has at most {MOST_SUBSCRIPTIONS} subscriptions")
        async with asyncio.timeout(WITHIN.total_seconds()):
            await self._line.listens.wait()
        wanted = {"channels": [*channels], "filter": {"min_severity": min_severity}}
        found = await self.ask(model.SUBSCRIBE, wanted)
        if isinstance(found, AgentRefusal):
            raise Unavailable(f"nothing was subscribed to: {found.reason}")
        subscription = AgentSubscription(self._unsubscribe)
        subscription.id = str(found.get("subscription_id", ""))
        subscription.channels = tuple(map(str, found.get("subscribed", ())))
        subscription.unsupported = tuple(map(str, found.get("unsupported", ())))
        self._subscriptions[subscription.id] = subscription
        for named, event in self._early:
            if named == subscription.id:
                subscription.give(event)
        return subscription

    async def _unsubscribe(self, subscription: AgentSubscription) -> None:
        if self._subscriptions.pop(subscription.id, None) is not None:
            await self.ask(model.UNSUBSCRIBE, {"subscription_id": subscription.id})

    async def _respond(self, callback: str, value: object) -> None:
        await self.ask(answers.RESPOND_METHOD, answers.callback_response_params(callback, value))

    async def _hear(self, frame: Frame) -> None:
        """Handle a notification that belongs to no call stream: a callback or an event."""
        if frame.method == mgp.CALLBACK_REQUEST:
            self._callbacks.take(frame)
        elif frame.method == model.NOTICE:
            try:
                named, event = happened_in(frame)
            except MalformedMessage as problem:
                log.info("An event was ignored: %s", problem)
                return
            if named in self._subscriptions:
                self._subscriptions[named].give(event)
            else:
                # Its stream may be faster than the answer to its subscription.
                self._early.append((named, event))


def _between(asked: timedelta) -> timedelta:
    """The time until the next check for an approval, within the two bounds."""
    return min(max(asked, _SOONEST), _LATEST)
