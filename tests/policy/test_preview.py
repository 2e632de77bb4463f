"""The dry run of a change of grants."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comity.mcp.actors import CALL
from comity.policy import preview
from comity.policy.grants import Effect, Grant, GrantSet, GrantSource, StaticRules
from comity.policy.preview import changed_access
from tests.conformance.governed import ADMIN
from tests.support.inbox_scene import Scene, an_inbox

AGENT, OTHER = "agent:ci", "agent:other"


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox() as scene:
        yield scene


async def dry_run(scene: Scene, **said: Any) -> Any:
    status, found = await scene.person(ADMIN).http("POST", "/api/grants/preview", said)
    assert status == 200, found
    return found


def stored(subject: str, target: str, effect: Effect = Effect.ALLOW) -> Grant:
    return Grant(subject, CALL, target, effect, source=GrantSource.RECORDS)


async def test_a_new_grant_shows_who_would_gain_which_tools(scene: Scene) -> None:
    put = [{"subject": AGENT, "target": "files/*"}]
    found = await dry_run(scene, put=put)
    assert (found["gained"], found["lost"], found["is_complete"]) == (3, 0, True)
    assert {each["tool"] for each in found["changes"]} == {"read", "write", "delete"}
    assert {each["principal"] for each in found["changes"]} == {AGENT}
    grants = scene.governed.visitor.parts.snapshot.grants.latest
    assert not grants.index_of(AGENT).grants


async def test_a_deletion_shows_who_would_lose_what_and_what_calls_had_become(
    scene: Scene,
) -> None:
    await scene.governed.grant(stored(AGENT, "files/*"))
    agent = scene.governed.guest(AGENT)
    for _ in range(3):
        await agent.modern("tools/call", {"name": "files__read", "arguments": {}})
    await scene.governed.visitor.parts.audit_log_components.audit_log.flush()
    found = await dry_run(scene, delete=[{"subject": AGENT, "target": "files/*"}])
    assert (found["lost"], found["gained"]) == (3, 0)
    past = found["past_calls"]
    assert (past["calls"], past["denied"], past["changed"]) == (3, 3, 3)
    assert past["sentence"] == "would have asked 0 times and denied 3 times"
    asks = [{"subject": AGENT, "target": "files/read", "effect": "ask"}]
    past = (await dry_run(scene, put=asks))["past_calls"]
    assert past["sentence"] == "would have asked 3 times and denied 0 times"
    assert (await dry_run(scene, put=asks, days=0))["past_calls"]["calls"] == 0


async def test_the_members_of_a_group_would_gain_what_its_grant_gives(scene: Scene) -> None:
    await scene.governed.grant(stored(AGENT, "files/read"), stored(OTHER, "files/read"))
    for who in (AGENT, OTHER):
        agent = scene.governed.guest(who)
        await agent.modern("tools/call", {"name": "files__read", "arguments": {}})
    await scene.governed.visitor.parts.audit_log_components.audit_log.flush()
    for path, said in (
        ("/api/principals", {"id": AGENT}),
        (f"/api/principals/{AGENT}/groups", {"add": ["sre"]}),
    ):
        status, _ = await scene.person(ADMIN).http("POST", path, said)
        assert status == 200
    found = await dry_run(scene, put=[{"subject": "group:sre", "target": "files/write"}])
    assert {each["principal"] for each in found["changes"]} == {AGENT}
    asks = [{"subject": "group:sre", "target": "files/read", "effect": "ask"}]
    past = (await dry_run(scene, put=asks))["past_calls"]
    assert (past["calls"], past["asked"]) == (1, 1)


async def test_a_dry_run_of_many_pairs_says_that_it_is_not_complete(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "MAX_PAIRS", 2)
    found = await dry_run(scene, put=[{"subject": AGENT, "target": "*"}])
    assert (len(found["changes"]), found["is_complete"]) == (2, False)


async def test_a_grant_that_makes_no_sense_is_refused(scene: Scene) -> None:
    for put in ([{"subject": "", "target": "*"}], [{"subject": AGENT}], "all"):
        status, _ = await scene.person(ADMIN).http("POST", "/api/grants/preview", {"put": put})
        assert status == 400


def test_static_grants_stay_and_a_grant_replaces_the_one_with_its_key() -> None:
    static = Grant(AGENT, CALL, "mail/*", Effect.ALLOW, source=GrantSource.FILE)
    access = GrantSet.from_grants([stored(AGENT, "files/*")], StaticRules((static,)))
    put = [stored(AGENT, "files/*", Effect.DENY), stored(OTHER, "files/*")]
    after = changed_access(access, put, [stored(AGENT, "mail/*"), stored("agent:none", "*")])
    assert set(after.index_of(AGENT).grants) == {static, put[0]}
    assert after.index_of(OTHER).grants == (put[1],)
    assert access.index_of(AGENT).grants != after.index_of(AGENT).grants
