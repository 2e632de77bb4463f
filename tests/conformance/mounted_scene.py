"""A topic with a real server in it, and members who speak to it over plain WebSockets."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from comity.approvals.model import ANSWER_VERB
from comity.audit.events import AuditEvent, event_of
from comity.audit.log import AuditLog
from comity.identity.principals import Principal
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, CALL, PrincipalKind
from comity.policy.grants import Effect, Grant
from comity.topics.rules import JOIN, SEND
from comity.topics.settings import TopicOverride
from tests.conformance.governed import UNHINDERED, Guest
from tests.support.commands import by_command
from tests.support.credentials import GivenOut, bearer
from tests.support.visitor import SECONDS, Visitor, visiting

type Heard = dict[str, Any]

FILES = "server:files"
INBOX = "system:approvals"
ANA = "person:ana@example.org"
BEA = "person:bea@example.org"
CI = "agent:ci"
BOT = "agent:bot"
SECRET = "wonderful-hidden-value-71"


def may_send(party: str, *capabilities: str) -> tuple[Grant, ...]:
    return tuple(Grant(party, SEND, f"ops/{each}", Effect.ALLOW) for each in capabilities)


PROPOSES = may_send(CI, "mcp/proposal:*", "chat")
ASKS = may_send(BOT, "mcp/*", "chat")
USES = Grant(BOT, CALL, "files/*", Effect.ALLOW)
PEOPLE = (
    *may_send(ANA, "mcp/*", "chat"),
    *may_send(BEA, "mcp/*", "chat"),
    Grant(ANA, ANSWER_VERB, "*", Effect.ALLOW),
    Grant(ANA, CALL, "files/*", Effect.ALLOW),
    *(Grant(ANA, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE)),
)


@dataclass
class Member:
    """Somebody in the topic, who knows nothing of how the gateway is made."""

    party: str
    socket: ClientConnection
    heard: list[Heard] = field(default_factory=list[Heard])
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def say(
        self, kind: str, payload: Heard, to: tuple[str, ...] = (), about: str = "", id: str = ""
    ) -> str:
        named = id or f"{self.party}-{next(self._ids)}"
        said: Heard = {"protocol": "mcpx/v0.1", "id": named, "from": self.party, "kind": kind}
        said |= {"to": list(to)} if to else {}
        said |= {"correlation_id": about} if about else {}
        await self.socket.send(json.dumps({**said, "payload": payload}))
        return named

    async def until(self, is_it: Callable[[Heard], bool]) -> Heard:
        """The first that is so, of all that was heard and will be."""
        async with asyncio.timeout(SECONDS):
            while (found := next(filter(is_it, self.heard), None)) is None:
                self.heard.append(json.loads(await self.socket.recv()))
        return found

    async def answer_to(self, id: str) -> Heard:
        """The response, or the error, that an envelope of its own was answered with."""
        return await self.until(
            lambda each: (
                each.get("correlation_id") == id
                and (each["kind"].startswith("mcp/response") or each["kind"] == "system/error")
            )
        )

    async def told(self, notice: str, id: str) -> Heard:
        def is_it(each: Heard) -> bool:
            is_notice = each["kind"] == "system/notice" and each.get("correlation_id") == id
            return is_notice and each["payload"]["notice"] == notice

        return (await self.until(is_it))["payload"]

    async def request(self, name: str = "plain", about: str = "", **arguments: Any) -> str:
        """Call a tool of the server in the topic."""
        kind = f"mcp/request:tools/call:{name}"
        return await self.say(kind, a_call(name, **arguments), (FILES,), about)

    async def propose(self, name: str = "plain", to: str = FILES, **arguments: Any) -> str:
        params = {"name": name, "arguments": arguments}
        payload = {"method": "tools/call", "params": params}
        return await self.say(f"mcp/proposal:tools/call:{name}", payload, (to,) if to else ())

    async def ask(self, method: str, params: Heard | None = None, to: str = FILES) -> Heard:
        """The whole payload of a response."""
        payload = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        id = await self.say(f"mcp/request:{method}", payload, (to,))
        return (await self.answer_to(id))["payload"]


def a_call(name: str = "plain", **arguments: Any) -> Heard:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


@dataclass
class Scene:
    """The gateway, its topic `ops`, and whoever comes there."""

    visitor: Visitor
    given_out: GivenOut
    stack: AsyncExitStack

    def key_of(self, party: str, *permissions: str) -> str:
        key = self.given_out.give(party, permissions=permissions)
        if party.startswith("person:"):
            self.given_out.parties[party] = Principal(party, PrincipalKind.PERSON)
        return key

    async def join(self, party: str, mode: str = "all", *permissions: str) -> Member:
        url = self.visitor.place.address.replace("http", "ws") + f"/ws?topic=ops&mode={mode}"
        headers = bearer(self.key_of(party, *permissions))
        opening = connect(url, additional_headers=headers, proxy=None)
        member = Member(party, await self.stack.enter_async_context(opening))
        await member.until(lambda each: each["kind"] == "system/welcome")
        return member

    def guest(self, party: str = ANA) -> Guest:
        return Guest(self.visitor.other("/mcp"), self.key_of(party))

    async def grant(self, *grants: Grant) -> None:
        snapshot = self.visitor.parts.snapshot
        await snapshot.records.grants.put(*grants)
        await snapshot.refresh()

    async def runs(self, name: str = "plain") -> list[Heard]:
        """What the server itself was sent of calls of this tool."""
        heard = self.visitor.other("/servers/files/mcp")
        guest = Guest(heard, self.key_of(ANA))
        answer = await guest.modern("tools/call", {"name": "heard"}, "/servers/files/mcp")
        frames = json.loads(answer["result"]["content"][0]["text"])
        calls = [each for each in frames if each.get("method") == "tools/call"]
        return [each for each in calls if each["params"]["name"] == name]

    async def entries(self, *types: str) -> list[AuditEvent]:
        """What stands in the journal of these types."""
        journal: AuditLog = self.visitor.parts.audit_log_components.audit_log
        await journal.flush()
        lines = await journal.store.page(journal.node, 0, 10_000)
        found = [event_of(line.body) for line in lines]
        return [each for each in found if each.type.removeprefix("dev.comity.") in types]

    async def answer(self, ask: str, verdict: str = "accept", party: str = ANA) -> tuple[int, Any]:
        path = f"/api/approvals/{ask}/answer"
        return await self.guest(party).http("POST", path, {"verdict": verdict})


@asynccontextmanager
async def a_topic(
    *grants: Grant, asks: bool = False, mounts: tuple[str, ...] = ("files",), **chosen: Any
) -> AsyncGenerator[Scene]:
    given_out, tools = GivenOut(), chosen.pop("tools", {})
    settings: dict[str, Any] = {
        **UNHINDERED,
        "grants": (*PROPOSES, *ASKS, *PEOPLE, USES, *grants),
        "topics_overrides": (
            TopicOverride("ops", servers=mounts, approvals=asks, access="restricted"),
        ),
        **chosen,
    }
    server = replace(
        by_command("files", {"SERVICE_TOKEN": SECRET}),
        args=("-m", "tests.conformance.topic_server"),
        tools=tools,
    )
    async with (
        visiting(server, register=given_out.register, **settings) as visitor,
        AsyncExitStack() as stack,
    ):
        yield Scene(visitor, given_out, stack)


MOUNTED = Grant(FILES, JOIN, "ops/*", Effect.ALLOW)
