"""Calls of tools as jobs: they pass the pipeline, wait for people and can be cancelled."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comity.gateway import call_jobs
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import Guest
from tests.support.inbox_scene import ANA, BEN, Scene, an_inbox

OPERATOR = "person:operator@example.org"
GRANTS = (
    Grant(OPERATOR, CALL, "files/read", Effect.ALLOW),
    Grant(OPERATOR, CALL, "files/write", Effect.ASK),
)


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox(*GRANTS) as scene:
        yield scene


async def start(guest: Guest, tool: str, **arguments: Any) -> Any:
    status, job = await guest.http("POST", "/api/calls", {"tool": tool, "arguments": arguments})
    assert status == 200, job
    return job


async def follow(guest: Guest, job: Any, *states: str) -> Any:
    """The job once it is in one of these states."""
    while job["state"] not in states:
        path = f"/api/calls/{job['id']}?after={job['version']}&wait=20"
        status, job = await guest.http("GET", path)
        assert status == 200, job
        assert not job["is_over"] or job["state"] in states, job
    return job


async def test_a_call_runs_with_the_grants_of_its_principal(scene: Scene) -> None:
    operator = scene.person(OPERATOR)
    job = await follow(operator, await start(operator, "files__read", path="/a"), "done")
    assert job["is_tool_error"] is False
    assert job["result"]["content"]
    assert job["trace"]
    entries = (await scene.person("person:admin").http("GET", f"/api/audit?trace={job['trace']}"))[
        1
    ]
    assert {each["actor"] for each in entries["entries"]} == {OPERATOR}


async def test_a_call_without_a_grant_is_refused_as_for_any_client(scene: Scene) -> None:
    stranger = scene.person(BEN)
    job = await follow(stranger, await start(stranger, "files__read"), "failed", "done")
    assert "result" not in job or job["is_tool_error"]


async def test_a_call_waits_for_its_approval_and_then_runs(scene: Scene) -> None:
    operator, ana = scene.person(OPERATOR), scene.person(ANA)
    job = await start(operator, "files__write", path="/a")
    job = await follow(operator, job, "waiting_for_approval")
    path = f"/api/approvals/{job['approval']}/answer"
    status, _ = await ana.http("POST", path, {"verdict": "accept"})
    assert status == 200
    job = await follow(operator, job, "done")
    assert job["result"]["content"]


async def test_a_denied_call_fails_with_the_reason(scene: Scene) -> None:
    operator, ana = scene.person(OPERATOR), scene.person(ANA)
    job = await follow(operator, await start(operator, "files__write"), "waiting_for_approval")
    word = {"verdict": "decline", "reason": "not on a Friday"}
    await ana.http("POST", f"/api/approvals/{job['approval']}/answer", word)
    job = await follow(operator, job, "failed", "done")
    assert "not on a Friday" in str(job)


async def test_a_call_that_waits_can_be_cancelled(scene: Scene) -> None:
    operator = scene.person(OPERATOR)
    job = await follow(operator, await start(operator, "files__write"), "waiting_for_approval")
    status, ended = await operator.http("POST", f"/api/calls/{job['id']}/cancel", {})
    assert (status, ended["state"], ended["is_over"]) == (200, "cancelled", True)
    status, again = await operator.http("POST", f"/api/calls/{job['id']}/cancel", {})
    assert (status, again["state"]) == (200, "cancelled")


async def test_only_its_principal_sees_and_cancels_a_call(scene: Scene) -> None:
    operator, ben = scene.person(OPERATOR), scene.person(BEN)
    job = await start(operator, "files__write")
    assert (await ben.http("GET", f"/api/calls/{job['id']}"))[0] == 404
    assert (await ben.http("POST", f"/api/calls/{job['id']}/cancel", {}))[0] == 404
    assert (await ben.http("GET", "/api/calls"))[1] == {"calls": []}
    assert [each["id"] for each in (await operator.http("GET", "/api/calls"))[1]["calls"]] == [
        job["id"]
    ]


async def test_calls_of_a_principal_are_limited(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = scene.person(OPERATOR)
    jobs = scene.governed.visitor.parts.call_jobs
    monkeypatch.setattr(jobs._shares, "limit", 1)  # pyright: ignore[reportPrivateUsage]
    await follow(operator, await start(operator, "files__write"), "waiting_for_approval")
    status, _ = await operator.http("POST", "/api/calls", {"tool": "files__read"})
    assert status == 503


async def test_a_result_that_is_too_large_is_not_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_jobs, "MAX_RESULT_BYTES", 10)
    operator = scene.person(OPERATOR)
    job = await follow(operator, await start(operator, "files__read"), "failed")
    assert "larger than 10 bytes" in job["error"]["message"]
