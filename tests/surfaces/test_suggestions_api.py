"""Suggestions at /api/suggestions, and the calls that go without an ask once one is accepted."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from comity.kernel.catalog import Kind
from comity.wire.asks import State
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Party, PartyKind
from tests.conformance.governed import ADMIN, ADMINISTERS, UNHINDERED, Governed, Guest
from tests.kernel.decisions import ANA, BEN, Decisions
from tests.surfaces.credentials import GivenOut
from tests.surfaces.upstream import Exchange, scripted
from tests.surfaces.visitor import at, visiting

ROOM = "/api/suggestions"
ASKED = Grant("agent:x", CALL, "files/*", Effect.ASK)
TOOLS: list[dict[str, Any]] = [
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "delete", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}},
]


@pytest.fixture
async def scene() -> AsyncGenerator[Governed]:
    given_out = GivenOut()
    given_out.parties[ADMIN] = Party(ADMIN, PartyKind.PERSON)
    chosen: dict[str, Any] = {**UNHINDERED, "grants": (*ADMINISTERS, ASKED)}
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(scripted())

        @upstream.act("tools/list")
        async def _(exchange: Exchange) -> None:
            await exchange.result({"tools": TOOLS})

        @upstream.act("tools/call")
        async def _(exchange: Exchange) -> None:
            await exchange.text("done")

        visitor = await stack.enter_async_context(
            visiting(
                at(upstream.url, "files"),
                register=given_out.register,
                ask_hold=timedelta(milliseconds=1),
                **chosen,
            )
        )
        yield Governed(visitor, given_out, {"files": upstream})


async def _decide(scene: Governed, count: int, tool: str = "read") -> None:
    parts = scene.visitor.parts
    offer = parts.catalog.offered("files", Kind.TOOL, tool)
    assert offer is not None
    digest = parts.caring.tools.standing(offer).digest
    records = parts.snapshot.records
    await Decisions(server="files", tool=tool, definition=digest).put(records, count)


async def _call(guest: Guest, path: str, tool: str = "read") -> bool:
    """Whether the call was made; else it waits for a person."""
    _, answer = await guest.http("POST", f"/tools/files__{tool}", {"path": path})
    return answer.get("content") == [{"type": "text", "text": "done"}] and not answer.get("isError")


async def _open_asks(scene: Governed) -> int:
    return await scene.visitor.parts.snapshot.records.asks.count([State.PENDING])


async def test_a_suggestion_is_listed_with_words_evidence_and_a_dry_run(scene: Governed) -> None:
    await _decide(scene, 12)
    await _decide(scene, 12, "delete")
    status, told = await scene.guest(ADMIN).http("GET", ROOM)
    assert status == 200
    (found,) = told["suggestions"]
    assert found["words"] == (
        "always allow `files__read` under /project for agent:x: 12 of 12 approved by two people "
        "within a day"
    )
    assert found["where"]["paths"] == {"/path": {"under": "/project"}}
    assert found["evidence"]["approved"] == 12
    assert found["evidence"]["people"] == [ANA, BEN]
    assert found["dry_run"]["sentence"] == "would have allowed 12; would not have covered 0"
    (held,) = told["held_back"]
    assert (held["name"], held["approved"]) == ("files__delete", 12)
    assert "may destroy" in held["why"]


async def test_what_was_accepted_lets_calls_go_and_asks_about_the_rest(scene: Governed) -> None:
    await _decide(scene, 12)
    agent, admin = scene.guest("agent:x"), scene.guest(ADMIN)
    assert not await _call(agent, "/project/new.txt")
    assert await _open_asks(scene) == 1
    _, told = await admin.http("GET", ROOM)
    order = {"id": told["suggestions"][0]["id"], "decision": "accept", "reason": "they only read"}
    status, done = await admin.http("POST", ROOM, order)
    assert status == 200
    assert (done["grant"]["granted_by"], done["grant"]["where_words"]) == (ADMIN, "under /project")
    assert await _call(agent, "/project/other.txt")
    assert await _call(agent, "/project/deep/er.txt")
    assert await _open_asks(scene) == 1
    for hostile in ("/etc/passwd", "/project/../etc/passwd", "/project/.env", "/project2/x"):
        assert not await _call(agent, hostile)
    assert not await _call(agent, "/project/x", "delete")
    assert await _open_asks(scene) == 6
    assert (await admin.http("GET", ROOM))[1]["suggestions"] == []
    gone = {"subject": "agent:x", "target": "files/read", "standing": True}
    assert (await admin.http("POST", "/api/grants/revoke", gone))[1]["revoked"]
    assert not await _call(agent, "/project/once more.txt")


async def test_a_standing_answer_is_no_answer_for_a_tool_that_destroys(scene: Governed) -> None:
    where = {"paths": {"/path": {"under": "/project"}}, "only": ["path"]}
    await scene.grant(Grant("agent:x", CALL, "files/delete", Effect.ALLOW, where=where))
    assert not await _call(scene.guest("agent:x"), "/project/x", "delete")
    assert await _open_asks(scene) == 1


async def test_one_that_was_dismissed_is_not_listed_again(scene: Governed) -> None:
    await _decide(scene, 12)
    admin = scene.guest(ADMIN)
    id = (await admin.http("GET", ROOM))[1]["suggestions"][0]["id"]
    order = {"id": id, "decision": "dismiss", "reason": "not yet"}
    assert await admin.http("POST", ROOM, order) == (
        200,
        {"id": id, "decision": "dismiss", "suggested_again_at": 24},
    )
    assert (await admin.http("GET", ROOM))[1]["suggestions"] == []
    assert (await admin.http("POST", ROOM, order))[0] == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"id": "x"}, 400),
        ({"id": "x", "decision": "perhaps"}, 400),
        ({"id": 3, "decision": "accept"}, 400),
        ({"id": "x", "decision": "accept", "reason": "x" * 2000}, 400),
        ({"id": "x", "decision": "accept", "more": 1}, 400),
        ({"id": "x", "decision": "accept"}, 404),
    ],
)
async def test_an_order_that_says_nothing_known_is_refused(
    scene: Governed, body: dict[str, Any], status: int
) -> None:
    assert (await scene.guest(ADMIN).http("POST", ROOM, body))[0] == status


async def test_only_people_who_administer_decide(scene: Governed) -> None:
    await _decide(scene, 12)
    id = (await scene.guest(ADMIN).http("GET", ROOM))[1]["suggestions"][0]["id"]
    order = {"id": id, "decision": "accept"}
    # An agent that may write grants is an agent all the same.
    await scene.grant(Grant("agent:op", "admin/*", "*", Effect.ALLOW))
    assert (await scene.guest("agent:op").http("GET", ROOM))[0] == 200
    status, refused = await scene.guest("agent:op").http("POST", ROOM, order)
    assert (status, refused["error"]["message"]) == (400, "only people decide about suggestions")
    assert (await scene.guest("agent:x").http("GET", ROOM))[0] == 403
    assert (await scene.guest("agent:x").http("POST", ROOM, order))[0] == 403
    assert (await scene.guest(ADMIN).http("DELETE", ROOM))[0] == 404
    claimed = {**order, "actor": "person:else"}
    assert (await scene.guest(ADMIN).http("POST", ROOM, claimed))[0] != 200
