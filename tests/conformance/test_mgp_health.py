"""Health in both directions: servers asked for their own account, and the gateway for its own."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from comity.sdk.agent import Agent
from comity.sdk.agent_results import AgentCallResult, AgentRefusal
from tests.conformance.conftest import standing
from tests.conformance.governed import ADMIN, governed
from tests.conformance.realm import SPOKEN, offer
from tests.conformance.ways import COMITY, Frame, House, on_pipes
from tests.interop.hand_client import SECONDS, initialize, over_http
from tests.interop.processes import operator_headers, operator_token, running

NOTICE = "notifications/mgp.lifecycle"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    servers = {
        "kit": {**on_pipes("kit"), "policy": {"approval_policy": "auto_approve"}},
        "talker": on_pipes("talker", TALKER_NAME="talker", TALKER_MGP=json.dumps(SPOKEN)),
        "plain": on_pipes("talker", TALKER_NAME="plain"),
    }
    with standing(tmp_path_factory.mktemp("health"), servers, "[policy]") as house:
        yield house


async def shown(house: House, server: str) -> Frame:
    async with (
        aiohttp.ClientSession(headers=operator_headers(house.origin)) as http,
        http.get(f"{house.origin}/api/servers/{server}") as reply,
    ):
        return await reply.json()


@pytest.mark.requirement("MGP-11.3-nodepend", "MGP-11.3-status-result")
async def test_an_operator_sees_what_a_server_says_of_itself_whatever_its_keys(
    house: House,
) -> None:
    account = (await shown(house, "kit"))["account"]
    assert type(account.pop("uptime_secs")) is int
    assert account.pop("tools_available") == account.pop("tools_total") > 0
    assert account == {
        "status": "healthy",
        "pending_requests": 0,
        "resources": {"notes": 3},
        "checks": {"disk": True},
    }


async def test_nobody_is_asked_who_did_not_agree_to_it(house: House) -> None:
    assert (await shown(house, "plain"))["account"] is None


@pytest.mark.requirement("MGP-11.4-lifecycle")
async def test_a_server_that_says_it_goes_is_shown_to_say_so_and_stays_in_use(
    house: House,
) -> None:
    said = {"server_id": "kit", "previous_state": "connected", "new_state": "draining"}
    notice = {"method": NOTICE, "params": {**said, "reason": "tired", "timestamp": "x"}}
    odd = {"method": NOTICE, "params": {"new_state": "asleep"}}
    async with house.among_all("talker").talk(offer("lifecycle")) as talk:
        await talk.call("tell", {"notices": [notice, odd], "standalone": True})
        async with asyncio.timeout(SECONDS):
            while "reported" not in (await shown(house, "talker"))["account"]:
                await asyncio.sleep(0.02)
        seen = await shown(house, "talker")
        assert seen["account"]["reported"]["new_state"] == "draining"
        assert seen["account"]["reported"]["reason"] == "tired"
        # Its word is input, never authority: neither its own state nor that of another changes.
        assert seen["state"] == "connected"
        assert (await shown(house, "kit"))["state"] == "connected"
        assert "reported" not in (await shown(house, "kit"))["account"]
        assert (await talk.call("seen")).result


@asynccontextmanager
async def agent(origin: str) -> AsyncGenerator[Agent]:
    async with (
        asyncio.timeout(3 * SECONDS),
        Agent(f"{origin}/mcp", operator_token(origin)) as found,
    ):
        yield found


async def test_whoever_administers_the_gateway_sees_what_it_uses(house: House) -> None:
    async with agent(house.origin) as found:
        health = await found.health()
        assert not isinstance(health, AgentRefusal)
        assert health["resources"]["memory_bytes"] > 1_000_000
        assert health["resources"]["open_connections"] >= 1


@pytest.mark.requirement("MGP-11.4-shutdown-result")
async def test_others_see_nothing_of_it_and_cannot_end_it() -> None:
    ended: list[str] = []
    async with governed(remote_shutdown=True) as scene:
        scene.visitor.parts.set_shutdown_callback(lambda: ended.append("end"))
        spoken: dict[str, Any] = {"mgp": {"version": "0.3.0", "extensions": ["lifecycle"]}}
        guest = await scene.guest("agent:guest").greet(**spoken)
        admin = await scene.guest(ADMIN).greet(**spoken)
        assert (await guest.ask("mgp/health/status"))["result"]["resources"] == {}
        assert (await admin.ask("mgp/health/status"))["result"]["resources"]
        wish = {"reason": "operator_request", "timeout_ms": 1}
        refused = (await guest.ask("mgp/lifecycle/shutdown", wish))["result"]
        assert (refused["accepted"], ended) == (False, [])
        accepted = (await admin.ask("mgp/lifecycle/shutdown", wish))["result"]
        assert (accepted["accepted"], ended) == (True, ["end"])


async def test_without_the_switch_nobody_ends_it(house: House) -> None:
    async with agent(house.origin) as found:
        wish = {"reason": "operator_request", "timeout_ms": 1}
        answer = await found.ask("mgp/lifecycle/shutdown", wish)
        assert not isinstance(answer, AgentRefusal)
        assert answer["accepted"] is False
        assert isinstance(await found.call("kit__say", {"text": "here"}), AgentCallResult)


@pytest.mark.requirement("MGP-11.4-shutdown", "MGP-11.4-operator_request", "MGP-11.2-t-drain")
async def test_where_it_is_switched_on_the_gateway_drains_tells_it_and_ends(
    tmp_path: Path,
) -> None:
    config = tmp_path / "comity.toml"
    config.write_text("remote_shutdown = true\n")
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        async with agent(origin) as found, over_http(f"{origin}/mcp") as listener:
            await initialize(listener, offer("lifecycle"))
            await listener.listen()
            refused = await found.ask("mgp/lifecycle/shutdown", {"reason": "boredom"})
            assert isinstance(refused, AgentRefusal)
            assert refused.code == -32602
            wish = {"reason": "operator_request", "timeout_ms": 5_000}
            answer = await found.ask("mgp/lifecycle/shutdown", wish)
            assert not isinstance(answer, AgentRefusal)
            assert answer["accepted"] is True
            assert 0 <= answer["estimated_drain_ms"] <= 5_000
            async with asyncio.timeout(SECONDS):
                while (told := await listener.standalone.get())["method"] != NOTICE:
                    pass
            listener.session = {}
        assert told["params"]["server_id"] == "system:gateway"
        assert told["params"]["new_state"] == "draining"
        assert told["params"]["reason"] == "operator_request"
        gone, _ = await asyncio.to_thread(
            psutil.wait_procs, [psutil.Process(program.pid)], timeout=SECONDS
        )
        assert gone
    assert "person:local stops the gateway: operator_request" in program.said
