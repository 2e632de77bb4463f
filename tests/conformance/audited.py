"""A gateway of which everything is read that happens: in its journal, and as it is told."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from comity.audit.events import NOTICE
from comity.identity.principals import Principal
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, PrincipalKind
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import CLIENT, UNHINDERED, Guest
from tests.support.credentials import GivenOut, bearer
from tests.support.upstream import Act, Exchange, Upstream, scripted
from tests.support.visitor import ENVELOPE, SECONDS, Frame, Reply, Visitor, at, visiting

ANA = "person:ana@example.org"
CI = "agent:ci"
METADATA = "http://169.254.169.254/latest/meta-data/"
SPOKEN: Frame = {"version": "0.3.0", "extensions": ["audit", "security"]}
AUDIT: Frame = {"mgp": {"version": "0.3.0", "extensions": ["audit", "access_control"]}}
LABELS: Frame = {
    "read": {"risk_level": "safe"},
    "write": {"risk_level": "dangerous"},
    "fetch": {"validator": "network_restricted"},
    "code": {"validator": "code_safety"},
}
TOOLS: list[Frame] = [
    {"name": name, "security": {**label, "permissions_required": []}}
    for name, label in LABELS.items()
]
"""None of them needs what their server was not given."""

GRANTS = tuple(
    Grant(ANA, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE, "tools/call")
)
MEMBERS = {"timestamp", "trace_id", "event_type", "actor", "target", "result", "details"}


@dataclass
class Scene:
    """The gateway, a server that speaks MGP, an audit server, and whoever comes."""

    visitor: Visitor
    given_out: GivenOut
    files: Upstream
    log: Upstream

    def guest(self, party: str = ANA, kind: PrincipalKind = PrincipalKind.PERSON) -> Guest:
        self.given_out.parties.setdefault(party, Principal(party, kind))
        return Guest(self.visitor.other("/mcp"), self.given_out.give(party))

    async def journal(self) -> list[Frame]:
        """All that was kept, as it was written down."""
        journal = self.visitor.parts.audit_log_components.audit_log
        await journal.flush()
        lines = await journal.store.page(journal.node, 0, 10_000)
        return [json.loads(line.body) for line in lines]

    async def found(self, kind: str, is_so: Callable[[Frame], bool] = bool) -> Frame:
        """The last entry of a type, once there is one that is so."""
        async with asyncio.timeout(SECONDS):
            while True:
                entries = [each for each in await self.journal() if each["event_type"] == kind]
                so = [each for each in entries if is_so(each)]
                if so:
                    return so[-1]
                await asyncio.sleep(0.02)

    async def until_connected(self, name: str) -> None:
        server = self.visitor.parts.servers.require(name)
        async with asyncio.timeout(SECONDS):
            while server.state != "connected":
                await asyncio.sleep(0.02)


async def listening(guest: Guest, **capabilities: Any) -> Reply:
    """The standing stream of a session that agreed on this."""
    await guest.greet(**(capabilities or AUDIT))
    guest.visitor.session = guest.session
    return await guest.visitor.get()


async def listening_modern(guest: Guest, **capabilities: Any) -> Reply:
    """A stream of the modern era whose request agreed on this, and has been acknowledged."""
    meta = {**ENVELOPE, CLIENT: capabilities or AUDIT}
    asked = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    headers = bearer(guest.key)
    return await guest.visitor.ask_modern("subscriptions/listen", asked, "ear", **headers)


async def told(stream: Reply, kind: str) -> Frame:
    """The next notice of a type on a stream; others are passed over."""
    async with asyncio.timeout(SECONDS):
        while True:
            event = await stream.event()
            if event.data and event.frame["method"] == NOTICE:
                if event.frame["params"]["event_type"] == kind:
                    return event.frame
                continue


@asynccontextmanager
async def audited(**chosen: Any) -> AsyncGenerator[Scene]:
    given_out = GivenOut()
    async with AsyncExitStack() as stack:
        files = await stack.enter_async_context(scripted())
        log = await stack.enter_async_context(scripted())
        speaks(files, "shell.execute")
        speaks(log)
        files.acts["tools/list"] = result({"tools": [described(each) for each in TOOLS]})
        servers = [
            replace(at(files.url, "files"), policy={"trust": "trusted"}),
            replace(at(log.url, "log"), policy={"audit": True}),
        ]
        settings: Frame = {**UNHINDERED, "grants": GRANTS, **chosen}
        visitor = await stack.enter_async_context(
            visiting(*servers, register=given_out.register, **settings)
        )
        yield Scene(visitor, given_out, files, log)


def described(tool: Frame, **more: object) -> Frame:
    return {"inputSchema": {"type": "object"}, **tool, **more}


def speaks(upstream: Upstream, *needs: str) -> None:
    """Have a server speak MGP, with all that it needs."""
    capabilities = {"tools": {}, "mgp": {**SPOKEN, "permissions_required": list(needs)}}
    hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities}
    upstream.acts["initialize"] = result({**hello, "serverInfo": {"name": "x", "version": "1"}})
    for method in ("ping", "mgp/permission/request", "mgp/permission/response"):
        upstream.acts[method] = result({})


def result(answer: Frame) -> Act:
    async def act(exchange: Exchange) -> None:
        await exchange.result(answer, mcp_session_id="one")

    return act
