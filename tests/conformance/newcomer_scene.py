"""A gateway at which agents may register servers, and what they bring."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from comity.approvals.model import ANSWER_VERB, ApprovalDecision
from comity.audit.events import AuditEvent, event_of
from comity.mcp.actors import ADMIN_WRITE, CALL, Actor, PrincipalKind
from comity.policy.grants import PERMISSION_VERB, Effect, Grant
from comity.policy.settings import PolicySettings
from tests.conformance.governed import (
    ADMIN,
    ADMINISTERS,
    MGP,
    Governed,
    Guest,
    governed,
    refusal_of,
)
from tests.support.visitor import SECONDS, Frame

AGENT, OTHER = "agent:maker", "agent:other"
REGISTER, DEREGISTER = "mgp/discovery/register", "mgp/discovery/deregister"
SPOKEN: dict[str, Any] = {
    "mgp": {"version": "0.3.0", "extensions": [*MGP["mgp"]["extensions"], "tool_discovery"]}
}
CODE = '''
def average(values: list) -> float:
    """The arithmetic average of a list of numbers."""
    return sum(values) / len(values)
'''
STATS: Frame = {"id": "dynamic.stats", "command": "python", "args": ["stats.py"]}
MADE: Frame = {"id": "dynamic.made", "code": CODE}
ANSWERS = Grant(ADMIN, ANSWER_VERB, "*", Effect.ALLOW)
MAY_CODE = Grant(AGENT, PERMISSION_VERB, "code_execution", Effect.ALLOW)
MINE = Grant(AGENT, ADMIN_WRITE, "*", Effect.ALLOW)
PERSON = Actor(ADMIN, PrincipalKind.PERSON)


DEFAULT_POLICY: dict[str, Any] = {
    "policy_require_approval": PolicySettings().require_approval,
    "policy_fallback_validators": PolicySettings().fallback_validators,
    "policy_on_suspicious_definition": PolicySettings().on_suspicious_definition,
}
"""The policy that `governed` sets for its tests, as it is where nobody sets it."""


@asynccontextmanager
async def brought(folder: Path, **chosen: Any) -> AsyncGenerator[Governed]:
    """Scripts of one folder may be registered, by whoever comes with a key."""
    (folder / "stats.py").write_text(CODE)
    settings = {
        "registration_commands": ("python",),
        "registration_folders": (str(folder),),
        "registration_from_network": True,
        **DEFAULT_POLICY,
        "approvals_client_wait": chosen.pop("approvals_client_wait", None),
        "grants": (*ADMINISTERS, ANSWERS, *chosen.pop("more_grants", ())),
        **chosen,
    }
    async with governed(**{k: v for k, v in settings.items() if v is not None}) as scene:
        yield scene


async def greeted(scene: Governed, party: str = ADMIN) -> Guest:
    return await scene.guest(party).greet(**SPOKEN)


async def listed(guest: Guest) -> dict[str, Frame]:
    """The servers that somebody is told of, by id."""
    found = (await guest.ask("mgp/discovery/list"))["result"]["servers"]
    return {server["id"]: server for server in found}


async def tool_names(guest: Guest) -> list[str]:
    return [tool["name"] for tool in (await guest.ask("tools/list"))["result"]["tools"]]


async def called(guest: Guest, values: list[float]) -> Frame:
    """The answer of the one tool that is there, called by the name by which it is listed."""
    (name,) = [each for each in await tool_names(guest) if "average" in each]
    return await guest.ask("tools/call", {"name": name, "arguments": {"values": values}})


async def until[T](look: Callable[[], Awaitable[T]]) -> T:
    """What a look finds, once it finds something."""
    async with asyncio.timeout(SECONDS):
        while not (found := await look()):
            await asyncio.sleep(0.02)
        return found


async def open_ask(scene: Governed, kind: str = "registration") -> Any:
    """The question that waits, once it does."""
    approvals = scene.visitor.parts.approval_components.approvals

    async def look() -> Any:
        found = await approvals.store.page((), "", 50)
        return next((ask for ask in found if ask.is_open and ask.kind == kind), None)

    return await until(look)


async def journaled(scene: Governed, type: str) -> list[AuditEvent]:
    """What was written down of a kind, in its order."""
    journal = scene.visitor.parts.audit_log_components.audit_log
    await journal.flush()
    lines = await journal.store.page(journal.node, 0, 10_000)
    return [event for line in lines if (event := event_of(line.body)).type == type]


def may_call(party: str, server: str, tool: str = "*") -> Grant:
    """A grant by the name of a tool answers beforehand what is asked about a dangerous tool."""
    return Grant(party, CALL, f"{server}/{tool}", Effect.ALLOW)


def is_there(scene: Governed, server: str = "dynamic.stats") -> bool:
    return scene.visitor.parts.servers.get(server) is not None


async def until_gone(scene: Governed) -> None:
    async def look() -> bool:
        return not is_there(scene)

    await until(look)


@asynccontextmanager
async def scene_of(folder: Path, **chosen: Any) -> AsyncGenerator[tuple[Governed, Guest]]:
    """An operator who may register whatever can be, before a folder with a script."""
    async with brought(folder, **chosen) as scene:
        yield scene, await greeted(scene)


async def answers(guest: Guest, *wishes: dict[str, Any]) -> list[str | None]:
    return [refusal_of(await guest.ask(REGISTER, {**STATS, **wish})) for wish in wishes]


async def approve(scene: Governed) -> None:
    ask = await open_ask(scene)
    await scene.visitor.parts.approval_components.approvals.answer(
        PERSON, ask.id, ApprovalDecision.ACCEPT
    )


async def alone(scene: Governed, party: str, wish: dict[str, Any]) -> str | None:
    """One request of its own, beside others."""
    guest = scene.guest(party)
    return refusal_of(await guest.modern(REGISTER, wish, **SPOKEN))
