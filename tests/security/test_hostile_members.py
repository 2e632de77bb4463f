"""Hostile members of topics: each case by name, with its answer; nothing of it reaches another."""

import json
from collections.abc import Callable, Generator

import pytest

from tests.security.hostile_members.answers import ELSEWHERE, FORGED, before
from tests.security.hostile_members.arrivals import ARRIVALS, TOPIC, Arrival
from tests.security.hostile_members.frames import FRAMES, Sent
from tests.security.hostile_members.promotions import ATTEMPTS, Attempt
from tests.security.hostile_members.said import CONFUSED, ODD, RESERVED, SPOOFED, Case
from tests.security.hostile_members.scene import (
    ANA,
    ANYTHING,
    BEA,
    GRANTED,
    PROPOSER,
    Scene,
    fresh_topic,
    joined,
    staged,
    watched,
)
from tests.security.hostile_members.shapes import SHAPES
from tests.security.hostile_members.wire import code_of_the_end, next_frame, status_of, upgraded
from tests.support.cases import CaseFunction, loop_over


@pytest.fixture(scope="module")
def scene() -> Generator[Scene]:
    with staged() as scene:
        yield scene


def named(cases: list[Case]) -> Callable[[CaseFunction], CaseFunction]:
    return loop_over("case", cases, ids=lambda case: case.name)


async def is_answered_and_reaches_nobody(scene: Scene, case: Case) -> None:
    async with watched(scene) as watch, joined(scene, case.party, watch.topic) as attacker:
        await attacker.tell(case.text)
        answer = await attacker.hear()
        assert answer["kind"] == "system/error", answer
        assert answer["payload"]["error"] == case.error
        assert answer["from"] == "system:gateway"
        assert answer["to"] == [case.party]
        assert answer.get("correlation_id", "") == case.id
        assert len(str(answer)) < 4_000
        assert await watch.heard_since() == []
        said = await attacker.is_passed_on()
        assert await watch.heard_since() == [said]


@pytest.mark.requirement("MCPX-3-from")
@named(SPOOFED)
async def test_attack_16_nobody_speaks_in_anothers_name(scene: Scene, case: Case) -> None:
    await is_answered_and_reaches_nobody(scene, case)


@pytest.mark.requirement("MCPX-4.1-reserved", "MCPX-4.1-reject", "MCPX-4.1-onlygateway")
@named(RESERVED)
async def test_attack_16_what_is_the_gateways_own_is_said_by_nobody_else(
    scene: Scene, case: Case
) -> None:
    await is_answered_and_reaches_nobody(scene, case)


@named(ODD)
async def test_attack_16_a_kind_that_readers_would_read_differently_is_none(
    scene: Scene, case: Case
) -> None:
    await is_answered_and_reaches_nobody(scene, case)


@pytest.mark.requirement("MCPX-4.2-match", "MCPX-4.2-block", "MCPX-4.2-return", "MCPX-6.2-enforce")
@named(CONFUSED)
async def test_attack_16_what_only_looks_like_a_capability_is_none(
    scene: Scene, case: Case
) -> None:
    await is_answered_and_reaches_nobody(scene, case)


@pytest.mark.requirement("MCPX-3-single", "MCPX-3-protocol", "MCPX-3-payload", "MCPX-8.1-errors")
@named(SHAPES)
async def test_attack_14_an_envelope_that_can_be_read_in_two_ways_is_read_in_none(
    scene: Scene, case: Case
) -> None:
    await is_answered_and_reaches_nobody(scene, case)


@pytest.mark.requirement("MCPX-3-corr-response")
@named(FORGED)
async def test_attack_15_only_who_was_asked_answers_and_every_id_is_used_once(
    scene: Scene, case: Case
) -> None:
    async with watched(scene) as watch, joined(scene, case.party, watch.topic) as attacker:
        async with joined(scene, ANA, fresh_topic()) as elsewhere:
            await elsewhere.say(id=ELSEWHERE, kind="mcp/request:tools/call", to=[case.party])
            await elsewhere.is_passed_on()
        for envelope in before(case.party):
            await watch.member.tell(json.dumps(envelope))
            while (await attacker.hear())["id"] != envelope["id"]:
                pass
        await watch.heard_since()
        await attacker.tell(case.text)
        answer = await attacker.hear_kind("system/error")
        assert answer["payload"]["error"] == case.error
        assert answer["correlation_id"] == case.id
        assert await watch.heard_since() == []
        honest = await attacker.say(kind="mcp/response:tools/call", correlation_id="asked-attacker")
        while (await attacker.hear())["id"] != honest["id"]:
            pass
        assert await watch.heard_since() == [honest]


@loop_over("sent", FRAMES, ids=lambda sent: sent.name)
async def test_attack_18_a_frame_that_is_none_ends_its_own_connection_alone(
    scene: Scene, sent: Sent
) -> None:
    async with watched(scene) as watch, upgraded(scene, ANYTHING, watch.topic) as peer:
        await next_frame(peer)
        peer.say(sent.data)
        assert await code_of_the_end(peer) == sent.code
        assert await watch.heard_since() == []
        async with joined(scene, BEA, watch.topic) as another:
            said = await another.is_passed_on()
        assert await watch.heard_since() == [said]


@pytest.mark.requirement("MCPX-6.2-bearer")
@loop_over("arrival", ARRIVALS, ids=lambda arrival: arrival.name)
async def test_attack_07_who_does_not_come_as_it_should_is_not_let_in(
    scene: Scene, arrival: Arrival
) -> None:
    async with watched(scene, TOPIC) as watch:
        assert await status_of(scene, arrival.request(scene)) == arrival.status
        assert await watch.heard_since() == []
        assert watch.members == {ANA}


@loop_over("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_attack_22_no_member_is_granted_more_by_its_own_doing(
    scene: Scene, attempt: Attempt
) -> None:
    async with watched(scene) as watch, joined(scene, PROPOSER, watch.topic) as member:
        assert await status_of(scene, attempt.request(scene)) == attempt.status
        await member.say(kind="mcp/request:tools/call")
        answer = await member.hear()
        assert answer["payload"]["error"] == "capability_violation"
        assert set(answer["payload"]["your_capabilities"]) == set(GRANTED[PROPOSER])
        assert await watch.heard_since() == []


def test_there_are_more_than_two_hundred_cases_and_no_two_of_one_name() -> None:
    said = [*SPOOFED, *RESERVED, *ODD, *CONFUSED, *SHAPES, *FORGED]
    names = [each.name for each in (*said, *FRAMES, *ARRIVALS, *ATTEMPTS)]
    assert len(names) > 200
    assert len(set(names)) == len(names)
