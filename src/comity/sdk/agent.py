"""An agent that speaks MGP with a gateway: it finds tools, calls them, and hears what happens.

Rule 1: a refusal is a value: it says what happened, whether and when to ask again, and what to use
        instead; exceptions are for a gateway that is not reached or not understood.
Rule 2: what may be asked again is, as MGP §14.6 says and within bounds; nothing else ever is.
Rule 3: what was not agreed on is not asked for: the gateway says that it does not exist.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from comity.rules.negotiation import offer
from comity.rules.retries import Plan, pause, told_by_server
from comity.sdk.agent_callbacks import Answer, Callbacks
from comity.sdk.agent_inbox import Inbox
from comity.sdk.agent_line import AgentLine
from comity.sdk.agent_streams import Stream, Subscription
from comity.sdk.agent_words import (
    Called,
    Happened,
    Refused,
    called_in,
    happened_in,
    piece_in,
    refused_in,
    result_in,
)
from comity.sdk.line import Token
from comity.wire import callbacks, events, lifecycle, mcp, registration, streaming, tool_discovery
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame
from comity.wire.lifecycle import moment
from comity.wire.negotiation import LIST_SERVERS, Extension

log = logging.getLogger(__name__)

MOST_RETRIES: Final = 5
_SOONEST: Final = timedelta(milliseconds=100)
_LATEST: Final = timedelta(seconds=10)
WITHIN: Final = timedelta(seconds=60)
MOST_SUBSCRIPTIONS: Final = 32
MOST_EARLY: Final = 64
_RETRIES: Final = Plan(idempotent=True, most=MOST_RETRIES)
"""The gateway calls nothing worth a retry that may have run: what it does may be repeated."""

type Found = dict[str, Any] | Refused


class Agent:
    """One session at a gateway; use it in an `async with`.

    `url` is the gateway's own door (`https://host/mcp`); `token` a key or a function that gives
    one; `answer` is asked what tools ask amid a call.
    """

    def __init__(
        self, url: str, token: Token = "", *, answer: Answer | None = None, name: str = "agent"
    ) -> None:
        self._line = AgentLine(url, token, self._hear)
        self._callbacks = Callbacks(answer, self._respond)
        self._name = name
        self._subscriptions: dict[str, Subscription] = {}
        self._early: deque[tuple[str, Happened]] = deque(maxlen=MOST_EARLY)
        self.extensions: frozenset[str] = frozenset()
        # What waits for somebody's answer, of others.
        self.inbox = Inbox(self._line)

    def __repr__(self) -> str:
        return f"Agent({self._name!r}, {self._line!r})"

    async def __aenter__(self) -> Self:
        try:
            hello = await self._line.open({"mgp": offer(Extension)}, self._name)
            # Whoever refuses the greeting answers with no result, which is no answer to it.
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
        """Any method of the gateway's. Raises Unavailable, MalformedMessage."""
        answer = await self._line.request(method, params, self._hear, within=within)
        refused = refused_in(answer)
        return result_in(answer) if refused is None else refused

    async def discover(self, query: str, **more: object) -> Found:
        """Tools that fit a need, the best first. (MGP §16.5)"""
        return await self.ask(tool_discovery.DISCOVER, {"query": query, **more})

    async def request_tools(self, capabilities: Sequence[str], **more: object) -> Found:
        """Have tools for a task put into this session. (MGP §16.6)"""
        wanted = {"reason": "capability_gap", "requirements": {"capabilities": [*capabilities]}}
        return await self.ask(tool_discovery.REQUEST, {**wanted, **more})

    async def session_tools(self) -> Found:
        """What is in this session's context, and what it takes. (MGP §16.7)"""
        return await self.ask(tool_discovery.SESSION, {})

    async def evict(self, *tools: str, reason: str = "") -> Found:
        return await self.ask(tool_discovery.EVICT, {"tools": [*tools], "reason": reason})

    async def servers(self, **wanted: object) -> Found:
        """The servers that are for us to know, of those wanted. (MGP §15.2)"""
        return await self.ask(LIST_SERVERS, {"filter": wanted} if wanted else {})

    async def register(self, id: str, **server: object) -> Found:
        """Have a server run, where an operator allows it. (MGP §15.4)"""
        return await self.ask(registration.REGISTER, {"id": id, **server})

    async def deregister(self, id: str, reason: str = "no_longer_needed") -> Found:
        return await self.ask(registration.DEREGISTER, {"id": id, "reason": reason})

    async def ping(self) -> Found:
        return await self.ask(lifecycle.HEALTH_PING, {"timestamp": moment(datetime.now(UTC))})

    async def health(self) -> Found:
        """How the gateway is; which `resources` and `checks` there are is not promised."""
        return await self.ask(lifecycle.HEALTH_STATUS, {})

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        *,
        within: timedelta | None = None,
        fallback: bool = True,
        patience: timedelta = timedelta(0),
    ) -> Called | Refused:
        """Call a tool, again where that is allowed, then its fallback. (MGP §14.6)

        `patience` is how long a person's approval is waited for, where a call needs one.
        """
        params = {"name": tool, "arguments": dict(arguments or {})}
        made, until = 0, time.monotonic() + patience.total_seconds()
        while True:
            answer = await self._line.request(mcp.CALL_TOOL, params, self._hear, within=within)
            refused = refused_in(answer, made + 1)
            if refused is None:
                return called_in(tool, answer, made + 1)
            if refused.awaits_approval and time.monotonic() < until:
                # The same call finds the answer; until there is one, it is no attempt.
                await asyncio.sleep(_between(refused.retry_after).total_seconds())
                continue
            chance = random.random()  # noqa: S311 - spreads a herd
            wait = pause(_RETRIES, told_by_server(answer), made, chance)
            if wait is None:
                break
            log.info("%s is called again in %s: %s", tool, wait, refused.reason)
            await asyncio.sleep(wait.total_seconds())
            made += 1
        if refused.retryable and refused.fallback_tool and fallback:
            return await self.call(refused.fallback_tool, arguments, within=within, fallback=False)
        return refused

    def stream(self, tool: str, arguments: Mapping[str, object] | None = None) -> Stream:
        """Call a tool and hear what it has before its end. (MGP §12)"""
        id = self._line.next_id()
        stream = Stream(
            lambda reason: self.ask(streaming.CANCEL, {"request_id": id, "reason": reason})
        )

        async def hear(frame: Frame) -> None:
            told = piece_in(frame)
            await (self._hear(frame) if told is None else stream.take(told))

        async def run() -> Called | Refused:
            wish = {"stream": True}
            params = {"name": tool, "arguments": dict(arguments or {}), streaming.MEMBER: wish}
            answer = await self._line.request(mcp.CALL_TOOL, params, hear, named=id)
            refused = refused_in(answer)
            return called_in(tool, answer) if refused is None else refused

        return stream.begin(asyncio.create_task(run()))

    async def subscribe(self, *channels: str, min_severity: str = "debug") -> Subscription:
        """Hear of channels, of families (`tool.*`) or of all. Raises Unavailable. (MGP §13.2)"""
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise Unavailable(f"an agent has at most {MOST_SUBSCRIPTIONS} subscriptions")
        async with asyncio.timeout(WITHIN.total_seconds()):
            await self._line.listens.wait()
        wanted = {"channels": [*channels], "filter": {"min_severity": min_severity}}
        found = await self.ask(events.SUBSCRIBE, wanted)
        if isinstance(found, Refused):
            raise Unavailable(f"nothing was subscribed to: {found.reason}")
        subscription = Subscription(self._unsubscribe)
        subscription.id = str(found.get("subscription_id", ""))
        subscription.channels = tuple(map(str, found.get("subscribed", ())))
        subscription.unsupported = tuple(map(str, found.get("unsupported", ())))
        self._subscriptions[subscription.id] = subscription
        for named, event in self._early:
            if named == subscription.id:
                subscription.give(event)
        return subscription

    async def _unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.id, None) is not None:
            await self.ask(events.UNSUBSCRIBE, {"subscription_id": subscription.id})

    async def _respond(self, callback: str, said: object) -> None:
        await self.ask(callbacks.RESPOND, callbacks.response(callback, said))

    async def _hear(self, frame: Frame) -> None:
        """What is told amid no stream of ours."""
        if frame.method == callbacks.REQUEST:
            self._callbacks.take(frame)
        elif frame.method == events.NOTICE:
            try:
                named, event = happened_in(frame)
            except MalformedMessage as problem:
                log.info("an event was left aside: %s", problem)
                return
            if named in self._subscriptions:
                self._subscriptions[named].give(event)
            else:
                # Its stream may be faster than the answer to its subscription.
                self._early.append((named, event))


def _between(asked: timedelta) -> timedelta:
    """How long to wait for a person, who is not hurried and may be quick."""
    return min(max(asked, _SOONEST), _LATEST)
