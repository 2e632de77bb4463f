"""A gateway with its default settings before the servers that MGP and the registry print."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from comity.approvals.model import ANSWER_VERB
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, CALL
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import Guest
from tests.support.credentials import GivenOut
from tests.support.upstream import Act, Exchange, Upstream, scripted
from tests.support.visitor import Frame, Visitor, at, visiting

ADMIN = "person:admin"
AGENT = "agent:cloto_default"
EXTENSIONS = (
    *("security", "access_control", "audit", "code_safety", "lifecycle", "streaming"),
    *("bidirectional", "discovery", "tool_discovery"),
)
MGP: Frame = {"mgp": {"version": "0.1.0", "extensions": list(EXTENSIONS)}}
"""All extensions of MGP, as a client offers them. (MGP §2.2)"""

OPERATES = tuple(
    Grant(ADMIN, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE, ANSWER_VERB)
)


def tool(name: str, description: str = "", schema: Frame | None = None, **more: Any) -> Frame:
    """One definition of a tool as its server lists it."""
    about = {"description": description} if description else {}
    return {"name": name, **about, "inputSchema": schema or {"type": "object"}, **more}


@dataclass(frozen=True)
class PrintedServer:
    """A server of the documents: its tools, what it says of itself, what its operator wrote."""

    tools: tuple[Frame, ...]
    mgp: Frame | None = None
    policy: Mapping[str, Any] | None = None
    results: Mapping[str, Frame] | None = None


@dataclass
class PrintedScene:
    """The gateway, and the clients that a test lets in."""

    visitor: Visitor
    given_out: GivenOut
    upstreams: dict[str, Upstream]

    async def client(self, principal: str, **capabilities: Any) -> Guest:
        """A client of the handshake version, which declares these capabilities."""
        guest = self.guest(principal)
        return await guest.greet(**capabilities)

    def guest(self, principal: str) -> Guest:
        """A client of the modern version, or of plain HTTP."""
        return Guest(self.visitor.other("/mcp"), self.given_out.give(principal))

    def calls_at(self, server: str) -> list[Frame]:
        """The calls that reached a server."""
        return [each.frame["params"] for each in self.upstreams[server].of("tools/call")]


def may_call(principal: str, *targets: str) -> Iterable[Grant]:
    return [Grant(principal, CALL, target, Effect.ALLOW) for target in targets]


@asynccontextmanager
async def printed_gateway(
    servers: Mapping[str, PrintedServer],
    *grants: Grant,
    play: Callable[[Upstream], None] | None = None,
    **chosen: Any,
) -> AsyncGenerator[PrintedScene]:
    """Run a gateway that asks each client for a key, and whose other settings are the defaults."""
    given_out = GivenOut()
    async with AsyncExitStack() as stack:
        upstreams: dict[str, Upstream] = {}
        settings: list[Any] = []
        for id, server in servers.items():
            upstream = upstreams[id] = await stack.enter_async_context(scripted(modern=False))
            _play(upstream, id, server)
            if play is not None:
                play(upstream)
            settings.append(replace(at(upstream.url, id), policy=server.policy or {}))
        visitor = await stack.enter_async_context(
            visiting(
                *settings,
                register=given_out.register,
                identity_mode="required",
                grants=(*OPERATES, *grants),
                **chosen,
            )
        )
        yield PrintedScene(visitor, given_out, upstreams)


def _play(upstream: Upstream, id: str, server: PrintedServer) -> None:
    async def initialize(exchange: Exchange) -> None:
        # MGP §2.4: who was not offered MGP says nothing of it.
        offered = exchange.frame["params"]["capabilities"].get("mgp")
        spoken = {"mgp": server.mgp} if server.mgp is not None and offered is not None else {}
        await exchange.result(
            {
                "protocolVersion": exchange.frame["params"]["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}, **spoken},
                "serverInfo": {"name": id, "version": "1.0.0"},
            },
            mcp_session_id=f"of-{id}",
        )

    upstream.acts["initialize"] = initialize
    upstream.acts["tools/list"] = answer_with({"tools": list(server.tools)})
    done = {"content": [{"type": "text", "text": "done"}]}
    for each in server.tools:
        upstream.acts[each["name"]] = answer_with((server.results or {}).get(each["name"], done))


def answer_with(result: Frame) -> Act:
    async def act(exchange: Exchange) -> None:
        await exchange.result(result)

    return act


def error_of(answer: Frame) -> tuple[int, str]:
    """The number and the type of the error in an answer."""
    error = answer["error"]
    return error["code"], error["data"]["error_type"]
