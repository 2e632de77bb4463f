"""When a server is started again, how often, and after which wait. (MGP §11.5)"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.realm import offer
from tests.conformance.supervised import Gateway, gateway, mortal, refusal_in, steps
from tests.conformance.ways import Entry, Frame, Talk

QUICK: Any = {"backoff_base_ms": 10}
LEFT = "SERVER_DISCONNECTED"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    servers: dict[str, Entry] = {
        "never": mortal("never", restart_policy="never", **QUICK),
        "failing": mortal("failing", restart_policy="on_failure", **QUICK),
        "always": mortal("always", restart_policy="always", **QUICK),
        "limited": mortal("limited", max_restarts=2, restart_window_secs=600, **QUICK),
        "usual": mortal("usual", **QUICK),
        "slow": mortal("slow"),
        "audited": mortal("audited", max_restarts=1, restart_window_secs=600, **QUICK),
        "hasty": mortal("hasty", max_restarts=1, restart_window_secs=1, **QUICK),
    }
    with gateway(tmp_path_factory.mktemp("restarts"), servers) as house:
        yield house


async def end(house: Gateway, server: str, how: str) -> list[Frame]:
    """Have a server end itself; gives the steps that followed, up to one that can last."""
    async with house.watching(server) as watch:
        before = (await house.look(server))["restarts"]
        await watch.talk.call(how)
        told = await watch.until("error" if how == "die" else "disconnected")
        found = await house.until(server, lambda now: _has_settled(now, before))
        return told if found["state"] != "connected" else told + await watch.until("connected")


def _has_settled(found: Frame, restarts_before: int) -> bool:
    if found["state"] == "connected":
        return found["restarts"] > restarts_before
    return found["state"] in ("error", "disconnected")


@pytest.mark.requirement("MGP-11.5-never", "MGP-11.2-error")
async def test_never_is_never(house: Gateway) -> None:
    told = await end(house, "never", "die")
    found = await house.look("never")
    assert steps(told) == [("connected", "error")]
    assert (found["state"], found["restarts"]) == ("error", 0)
    assert "never" in found["reason"]
    async with house.watching("never") as watch:
        code, body = refusal_in((await watch.talk.call("echo")).response)
    assert (code, body["error_type"]) == (2000, "server_stopped")
    assert body["_mgp"]["retryable"] is False


@pytest.mark.requirement("MGP-11.5-on_failure")
async def test_on_failure_is_only_after_a_failure(house: Gateway) -> None:
    told = await end(house, "failing", "die")
    assert steps(told)[-1] == ("connecting", "connected")
    assert (await house.look("failing"))["restarts"] == 1
    left = await end(house, "failing", "leave")
    assert steps(left) == [("connected", "disconnected")]
    assert (await house.look("failing"))["restarts"] == 1


async def test_always_is_after_a_farewell_too(house: Gateway) -> None:
    for number, how in enumerate(("die", "leave"), 1):
        told = await end(house, "always", how)
        assert steps(told)[-1] == ("connecting", "connected")
        assert (await house.look("always"))["restarts"] == number


@pytest.mark.requirement("MGP-11.5-exceeded", "MGP-11.5-max_restarts")
@pytest.mark.parametrize(
    ("server", "most", "window"),
    [
        pytest.param("limited", 2, 600, id="written"),
        pytest.param("usual", 5, 300, id="unless it says otherwise"),
    ],
)
@pytest.mark.requirement("MGP-11.5-restart_window_secs")
async def test_past_the_limit_a_server_stays_in_error(
    house: Gateway, server: str, most: int, window: int
) -> None:
    for _ in range(most):
        assert steps(await end(house, server, "die"))[-1] == ("connecting", "connected")
    told = await end(house, server, "die")
    found = await house.look(server)
    assert steps(told) == [("connected", "error")]
    assert (found["state"], found["restarts"]) == ("error", most)
    # What is the detail of the audit event is in the reason, here and in the notice.
    assert f"restart_limit_exceeded: started again {most} times in {window} s" in found["reason"]
    assert told[-1]["reason"] == found["reason"]


async def left(talk: Talk, server: str) -> Frame:
    """The next that is told of a server's having left."""
    while True:
        params = (await talk.told("notifications/mgp.audit"))["params"]
        if (params["event_type"], params["target"]["server_id"]) == (LEFT, server):
            return params


@pytest.mark.requirement("MGP-11.5-exceeded-audit", "MGP-6.4-SERVER_DISCONNECTED")
async def test_past_the_limit_the_audit_trail_says_so(house: Gateway) -> None:
    async with house.operated("audited").talk(offer("audit")) as talk:
        await talk.client.listen()
        await talk.call("die")
        first = await left(talk, "audited")
        await house.until("audited", lambda found: _has_settled(found, 0))
        await talk.call("die")
        last = await left(talk, "audited")
        assert "restart_limit_exceeded" not in first["details"]
        assert last["details"]["restart_limit_exceeded"] is True
        assert last["actor"] == {"type": "server", "id": "server:audited"}
        given_up = await talk.told("notifications/mgp.audit")
        assert given_up["params"]["event_type"] == "dev.comity.restart_limit_exceeded"


@pytest.mark.requirement("MGP-11.5-exceeded-audit")
async def test_a_server_that_never_was_there_is_given_up_in_the_audit_trail_too(
    tmp_path: Path,
) -> None:
    care = {"max_restarts": 2, "backoff_base_ms": 500}
    broken: Entry = {"command": "no-such-program", "mgp": care}
    with gateway(tmp_path, {"near": mortal("near"), "broken": broken}) as house:
        async with house.operated("near").talk(offer("audit")) as talk:
            await talk.client.listen()
            await house.order("broken", "restart")
            entry = await left(talk, "broken")
    assert entry["details"]["restart_limit_exceeded"] is True
    assert entry["actor"] == {"type": "system", "id": "system:gateway"}


@pytest.mark.requirement("MGP-11.5-restart_window_secs")
async def test_what_lies_before_the_window_does_not_count(house: Gateway) -> None:
    for number in (1, 2):
        assert steps(await end(house, "hasty", "die"))[-1] == ("connecting", "connected")
        up = await house.until("hasty", lambda found: found["state"] == "connected")
        assert up["restarts"] == number
        # Until the restart is older than the window of one second.
        await house.until("hasty", lambda found: _age(found) > timedelta(seconds=1.2))


def _age(found: Frame) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(found["since"])


@pytest.mark.requirement("MGP-11.5-backoff_base_ms")
async def test_the_first_wait_is_a_second_spread_by_half_unless_said_otherwise(
    house: Gateway,
) -> None:
    async with house.watching("slow") as watch:
        await watch.talk.call("die")
        told = await watch.until("connecting")
    began, ended = (datetime.fromisoformat(step["timestamp"]) for step in told[-2:])
    assert [step["new_state"] for step in told[-2:]] == ["restarting", "connecting"]
    assert ended - began > timedelta(seconds=0.5) - timedelta(milliseconds=50)


@pytest.mark.requirement("MGP-11.5-backoff_max_ms")
async def test_the_waits_double_no_further_than_the_longest(tmp_path: Path) -> None:
    """Fifteen waits that doubled without end would take more than five minutes."""
    care = {"max_restarts": 15, "backoff_base_ms": 20, "backoff_max_ms": 40}
    with gateway(tmp_path, {"broken": {"command": "no-such-program", "mgp": care}}) as house:
        found = await house.until_state("broken", "error")
    assert found["restarts"] == 15


@pytest.mark.requirement("MGP-11.5-max_restarts")
async def test_a_word_of_the_operator_begins_the_count_anew(tmp_path: Path) -> None:
    with gateway(tmp_path, {"near": mortal("near", max_restarts=0, **QUICK)}) as house:
        assert steps(await end(house, "near", "die")) == [("connected", "error")]
        async with house.watching("near") as watch:
            await house.order("near", "restart")
            told = await watch.until("connected")
    assert steps(told) == [
        ("error", "restarting"),
        ("restarting", "connecting"),
        ("connecting", "connected"),
    ]
