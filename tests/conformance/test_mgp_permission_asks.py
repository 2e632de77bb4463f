"""Permissions of servers, decided through the inbox or at any other door. (MGP §3.3, D-102)"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.approvals.model import ANSWER_VERB
from comity.config.trust import content_digest, trust_file
from comity.identity.principals import Principal
from comity.mcp.actors import ADMIN_WRITE, PrincipalKind
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import governed
from tests.conformance.guarding import (
    answer_to,
    asked,
    decide,
    decisions,
    guarded,
    guarding,
    until_heard,
)
from tests.conformance.questioned import answer, asks, journaled, until_state
from tests.conformance.ways import Entry, Frame, House
from tests.interop.hand_client import SECONDS


def interactive(*needs: str) -> Entry:
    return guarded(*needs, approval_policy="interactive")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with guarding(
        tmp_path_factory.mktemp("permitting"),
        shown=interactive("shell", "com.example.own"),
        given=interactive("shell.execute"),
        denied=interactive("shell.execute"),
        ending=interactive("shell.execute"),
        elsewhere=interactive("shell.execute", "camera"),
        again=interactive("shell.execute"),
        closed=guarded("shell.execute", approval_policy="deny_all"),
    ) as house:
        yield house


async def pending(house: House, server: str, number: int = 1, state: str = "") -> list[Frame]:
    """The asks for this server's permissions, once there are so many."""
    query = {"state": state} if state else {}
    async with asyncio.timeout(SECONDS):
        while True:
            found = [
                each
                for each in await asks(house, **query)
                if each["kind"] == "permission" and each["server"] == server
            ]
            if len(found) >= number:
                return found
            await asyncio.sleep(0.05)


@pytest.mark.requirement("MGP-3.3-interactive", "MGP-3.1-decide")
async def test_each_permission_is_shown_with_what_it_means_and_its_risk(house: House) -> None:
    found = {each["about"]["permission"]: each for each in await pending(house, "shown", 2)}
    assert found.keys() == {"shell.execute", "com.example.own"}
    shell = found["shell.execute"]
    assert (shell["requester"], shell["risk"]) == ("server:shown", "dangerous")
    assert shell["summary"] == (
        "Server shown needs the permission shell.execute (dangerous): to run commands in a shell"
    )
    lasts = datetime.fromisoformat(shell["expires_at"]) - datetime.fromisoformat(
        shell["created_at"]
    )
    assert lasts >= timedelta(days=1)
    assert not [each for each in await asks(house) if each["server"] == "closed"]


@pytest.mark.requirement("MGP-3.3-interactive", "MGP-3.4-flow", "MGP-3.6-response")
@pytest.mark.requirement("MGP-3.6-approved", "MGP-3.6-approved_by")
async def test_who_accepts_grants_it_and_the_server_is_told(house: House) -> None:
    (question,) = await until_heard(house, "given", "mgp/permission/request")
    assert (await answer_to(house, "given", "run"))["error"]["code"] == 1000
    (ask,) = await pending(house, "given")
    assert (await answer(house, ask["id"], "accept", reason="it is ours"))[0] == 200
    assert await decisions(house, "given") == {"shell.execute": "approved"}
    assert "result" in await answer_to(house, "given", "run")
    (told,) = await until_heard(house, "given", "mgp/permission/response")
    assert told["params"]["request_id"] == question["params"]["request_id"]
    assert told["params"]["grants"] == {"shell.execute": "approved"}
    assert told["params"]["approved_by"] == "person:local"
    assert (await until_state(house, ask["id"], "consumed"))["answers"][0]["by"] == "person:local"
    grants = (await asked(house, "grants"))["grants"]
    (grant,) = [each for each in grants if each["subject"] == "server:given"]
    assert (grant["verb"], grant["effect"]) == ("perm", "allow")
    assert (grant["granted_by"], grant["justification"]) == ("person:local", "it is ours")
    assert {
        "dev.comity.approval_requested",
        "dev.comity.approval_answered",
        "dev.comity.approval_consumed",
    } <= {each["type"] for each in await journaled(house, ask["id"])}


@pytest.mark.requirement("MGP-3.3-interactive", "MGP-3.4-outcome")
async def test_who_declines_denies_it(house: House) -> None:
    (ask,) = await pending(house, "denied")
    await answer(house, ask["id"], "decline")
    assert await decisions(house, "denied") == {"shell.execute": "denied"}
    (told,) = await until_heard(house, "denied", "mgp/permission/response")
    assert told["params"]["grants"] == {"shell.execute": "denied"}
    assert (await answer_to(house, "denied", "run"))["error"]["code"] == 1000
    assert not [each for each in await asks(house) if each["server"] == "denied"]


@pytest.mark.requirement("MGP-3.6-expires_at")
async def test_what_is_given_for_a_while_is_asked_for_again_after_it(house: House) -> None:
    (ask,) = await pending(house, "ending")
    for wrong in ("yesterday", "2001-01-01T00:00:00+00:00", 5):
        assert (await answer(house, ask["id"], "accept", content={"expires_at": wrong}))[0] == 400
    assert (await answer(house, ask["id"], "accept", content={"target": "*"}))[0] == 400
    until = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
    assert (await answer(house, ask["id"], "accept", content={"expires_at": until}))[0] == 200
    assert await decisions(house, "ending") == {"shell.execute": "approved"}
    (again,) = await pending(house, "ending")
    assert again["id"] != ask["id"]
    assert await decisions(house, "ending") == {"shell.execute": "deferred"}


@pytest.mark.requirement("MGP-3.3-interactive")
async def test_what_is_decided_at_another_door_ends_its_ask_as_it_was_decided(
    house: House,
) -> None:
    found = {each["about"]["permission"]: each for each in await pending(house, "elsewhere", 2)}
    await decide(house, "approve", "elsewhere", "shell.execute", justification="by hand")
    await decide(house, "deny", "elsewhere", "camera")
    used = await until_state(house, found["shell.execute"]["id"], "consumed", "withdrawn")
    assert (used["state"], used["answers"][0]["by"]) == ("consumed", "person:local")
    declined = await until_state(house, found["camera"]["id"], "denied", "withdrawn")
    assert declined["state"] == "denied"
    # And what is forgotten is asked for once more.
    await decide(house, "reset", "elsewhere", "camera")
    (again,) = await pending(house, "elsewhere")
    assert again["about"]["permission"] == "camera"


async def test_a_server_that_starts_again_asks_nobody_twice(house: House) -> None:
    (ask,) = await pending(house, "again")
    began = (await asked(house, "servers", "again"))["restarts"]
    assert "error" not in await asked(house, "servers", "again", "restart", body={})
    async with asyncio.timeout(SECONDS):
        while True:
            now = await asked(house, "servers", "again")
            if now["state"] == "connected" and now["restarts"] > began:
                break
            await asyncio.sleep(0.05)
    await until_heard(house, "again", "mgp/permission/request")
    assert [each["id"] for each in await pending(house, "again")] == [ask["id"]]
    everything = await pending(house, "again", state="all")
    assert [each["id"] for each in everything] == [ask["id"]]


async def test_a_server_that_is_removed_takes_its_asks_with_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("removing")
    leaving = interactive("shell.execute")
    staying = interactive("shell.execute")
    with guarding(folder, leaving=leaving, staying=staying) as house:
        (ask,) = await pending(house, "leaving")
        (other,) = await pending(house, "staying")
        written = house.config.read_text()
        shorter = _without(written, "leaving")
        # A file that only lost something counts after its approval.
        trust_file(house.config, content_digest(shorter.encode()))
        house.config.write_text(shorter)
        assert (await until_state(house, ask["id"], "withdrawn"))["state"] == "withdrawn"
        assert [each["id"] for each in await pending(house, "staying")] == [other["id"]]


def _without(written: str, server: str) -> str:
    tables = written.split("[[servers]]")
    return "[[servers]]".join(each for each in tables if f'id = "{server}"' not in each)


@pytest.mark.requirement("MGP-3.3-interactive")
async def test_only_a_person_who_administers_decides_what_a_server_may_do() -> None:
    """To answer asks is not enough, nor is to administer, and an agent has no say. (D-98, D-102)"""
    async with governed() as house:
        parts = house.visitor.parts
        permits = parts.server_policies.tool_reviews.permission_service
        await house.grant(
            *(
                Grant(party, ANSWER_VERB, "*", Effect.ALLOW)
                for party in ("person:a", "person:both")
            ),
            *(Grant(each, ADMIN_WRITE, "*", Effect.ALLOW) for each in ("person:w", "person:both")),
            *(Grant("agent:x", verb, "*", Effect.ALLOW) for verb in (ANSWER_VERB, ADMIN_WRITE)),
        )
        for party in ("person:a", "person:w", "person:both"):
            house.given_out.parties[party] = Principal(party, PrincipalKind.PERSON)
        ask = await _asked_for(parts, permits, "files", "camera")
        said: dict[str, Any] = {"verdict": "accept"}
        for party in ("person:a", "person:w", "agent:x"):
            status, _ = await house.guest(party).http("POST", f"/api/approvals/{ask}/answer", said)
            assert status in (400, 403, 404), party
        assert permits.permissions_of("files").decision_by_name["camera"].decision == "deferred"
        both = house.guest("person:both")
        status, answered = await both.http("POST", f"/api/approvals/{ask}/answer", said)
        assert status == 200, answered
        assert answered["state"] == "approved"
        assert permits.permissions_of("files").decision_by_name["camera"].decision == "approved"


async def _asked_for(parts: Any, permits: Any, server: str, name: str) -> str:
    """Have a server need something that nobody has decided; gives the id of the ask."""
    await parts.snapshot.records.grants.put(Grant(f"server:{server}", "perm", name, Effect.ASK))
    await parts.snapshot.refresh()
    permits.add_tool_permissions(server, [name])
    async with asyncio.timeout(SECONDS):
        while True:
            found = await parts.approval_components.approvals.store.page()
            if found:
                return found[0].id
            await asyncio.sleep(0.02)
