"""Feature sets through a real gateway, in both eras and on both transports. (MCPL §3, §5, §6)"""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.live.host import MAX_ACTIVE_REQUESTS
from tests.live.talker_scene import (
    BOUNDS,
    DECLARED,
    SETS,
    WAYS,
    Composed,
    Frame,
    Scene,
    code_of,
    name_of,
    push,
    scene,
    talking,
    until,
)

pytestmark = pytest.mark.integration
LIVE = '[servers.live]\nenabled = ["talk.*", "files.edit"]\ndisabled = ["talk.hook"]\n' + BOUNDS
ENABLED = ["files.edit", "talk.push"]
DISABLED = ["files.read", "loud", "talk.hook"]
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
type Stage = tuple[str, Path, Composed]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    """One gateway before a server for each way; nothing is decided anew in it."""
    with talking(tmp_path_factory.mktemp("live"), WAYS, LIVE) as found:
        yield found


@pytest.fixture(params=WAYS)
async def here(stage: Stage, request: pytest.FixtureRequest) -> AsyncGenerator[Scene]:
    async with aiohttp.ClientSession() as http:
        yield Scene(*stage, http, name_of(request.param))


@pytest.fixture
def is_modern(here: Scene) -> bool:
    return here.server.startswith("modern")


def offered_in(frame: Frame, *, modern: bool) -> Frame:
    params = frame["params"]
    if modern:
        return params["_meta"][CAPABILITIES]["extensions"]["dev.comity/mcpl"]
    return params["capabilities"]["experimental"]["mcpl"]


@pytest.mark.requirement(
    *("MCPL-3.1-experimental", "MCPL-3.1-version", "MCPL-5.2-host", "MCPL-2-orthogonal"),
    "MCPL-8-advertise",
)
async def test_the_host_offers_all_that_it_does_and_speaks_the_same_mcp(
    here: Scene, is_modern: bool
) -> None:
    greeting = (await here.seen("server/discover" if is_modern else "initialize"))[0]
    assert offered_in(greeting, modern=is_modern) == {
        "version": "0.4",
        "pushEvents": True,
        "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
        "inferenceRequest": {"streaming": True},
        "modelInfo": True,
        "featureSets": True,
        "channels": dict.fromkeys(
            ("register", "publish", "observe", "lifecycle", "streaming"), True
        ),
        "state": {"branching": True, "rollback": True},
    }
    if not is_modern:
        assert greeting["params"]["protocolVersion"] == "2025-11-25"


@pytest.mark.requirement(
    *("MCPL-5.3-initial", "MCPL-6.7-update", "MCPL-6.3-wildcards", "MCPL-7.2-scopes"),
    *("MCPL-6.4-init", "MCPL-4-jsonrpc", "MCPL-2-hostcontrol"),
)
async def test_what_is_enabled_is_told_first_of_all_and_not_in_the_greeting(
    here: Scene, is_modern: bool
) -> None:
    seen = await here.seen()
    assert all(frame["jsonrpc"] == "2.0" for frame in seen)
    ours = [each for each in seen if each["method"].partition("/")[0] in ("featureSets", "mcpl")]
    first = ours[0]
    assert first["method"] == "featureSets/update"
    # Of the modern era stock peers drop what they did not ask for, so there it is a request.
    assert ("id" in first) is is_modern
    told = {name: first["params"][name] for name in ("enabled", "disabled", "scopes")}
    assert told == {
        "enabled": ENABLED,
        "disabled": DISABLED,
        "scopes": {
            "files.edit": {
                "whitelist": ["/project/**"],
                "blacklist": ["**/.env", "**/secrets/**"],
            }
        },
    }
    greeting = json.dumps((await here.seen("server/discover" if is_modern else "initialize"))[0])
    assert "talk.push" not in greeting


@pytest.mark.requirement(
    *("MCPL-6.6-disabled", "MCPL-6.6-unknown", "MCPL-A-32001", "MCPL-A-32003"),
    "MCPL-13.1-mitigate",
)
async def test_what_is_not_enabled_declared_or_for_that_use_is_refused(here: Scene) -> None:
    answers = await here.ask(
        push("loud"), push("nowhere"), push("files.edit"), {"method": "push/event", "params": {}}
    )
    disabled, unknown, other_use, unnamed = answers
    assert (code_of(disabled), code_of(unknown), code_of(other_use)) == (-32001, -32003, -32001)
    data = disabled["error"]["data"]
    assert (data["featureSet"], data["canEnable"]) == ("loud", True)
    assert disabled["error"]["message"] == "Feature set not enabled"
    assert unknown["error"]["data"]["featureSet"] == "nowhere"
    assert "canEnable" not in unknown["error"]["data"]
    assert code_of(unnamed) == -32602


async def test_every_request_is_answered_whatever_stands_in_it(here: Scene) -> None:
    broken: list[Any] = [None, 7, [], {"featureSet": 7}, {"featureSet": ["talk.push"]}]
    methods = ("push/event", "inference/request", "scope/elevate", "channels/incoming")
    asked = [{"method": method, "params": each} for method in methods for each in broken]
    answers = await here.ask(*asked, {"method": "channels/register", "params": {"channels": 1}})
    assert all("error" in each for each in answers)
    assert {code_of(each) for each in answers} <= {-32602, -32600, -32001, -32003}


@pytest.mark.requirement("MCPL-13.2-audit")
async def test_what_a_server_does_and_is_refused_is_in_the_journal(here: Scene) -> None:
    await here.ask(push("loud"))
    await here.elevate("/project/x", path="/project/x")

    def is_here(entry: Frame) -> bool:
        return entry["server"] == here.server

    async def refusals() -> list[Frame] | None:
        found = [each for each in await here.entries("feature_refused") if is_here(each)]
        return [each for each in found if each["details"].get("feature_set") == "loud"] or None

    refused = (await until(refusals))[0]
    assert refused["actor"] == f"server:{here.server}"
    assert (refused["server"], refused["result"]) == (here.server, "BLOCKED")
    assert refused["details"]["method"] == "push/event"
    assert refused["details"]["outcome"] == "feature_not_enabled"
    assert refused["at"]

    async def used() -> list[Frame] | None:
        found = [each for each in await here.entries("feature_used") if is_here(each)]
        return [each for each in found if each["details"]["method"] == "scope/elevate"] or None

    (done, *_) = await until(used)
    assert (done["details"]["feature_set"], done["details"]["outcome"]) == ("files.edit", "ok")
    told = [each for each in await here.entries("features_declared") if is_here(each)]
    assert told[0]["details"]["enabled"] == ENABLED


@pytest.mark.requirement("MCPL-8-tolerate-h")
async def test_what_nobody_knows_in_an_answer_is_passed_on_and_troubles_nobody(
    here: Scene,
) -> None:
    answer = await here.answer("plain", {"x": 1})
    assert answer["unknownToAll"] == {"at": [1]}
    assert not answer.get("isError")


async def test_a_servers_requests_to_its_host_reach_no_client(here: Scene) -> None:
    heard: list[str] = []
    async with here.session() as client:

        def answer(frame: Frame) -> Frame:
            heard.append(frame["method"])
            return {"result": {}}

        client.answer = answer
        await client.listen()
        await here.ask(push("loud"), {"method": "model/info"}, {"method": "channels/list"})
        await client.request("tools/call", {"name": "plain", "arguments": {}})
        said = [] if client.standalone.empty() else [client.standalone.get_nowait()]
    assert heard == []
    assert [each for each in said if "push" in str(each) or "featureSets" in str(each)] == []


@pytest.mark.requirement("MCPL-6.6-disabled")
async def test_with_nothing_decided_nothing_is_enabled_and_the_server_is_told_so(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, live="") as here:
        (told,) = await here.updates()
        assert told == {"enabled": [], "disabled": sorted(SETS)}
        codes = {code_of(each) for each in await here.ask(*map(push, sorted(SETS)))}
        assert codes == {-32001}
        found = (await here.api("features"))["servers"][0]
        assert {each["reason"] for each in found["features"]} == {"it is not enabled"}


@pytest.mark.requirement("MCPL-3.3-skip", "MCPL-2-compat")
async def test_a_plain_server_is_told_nothing_and_let_do_nothing_live(tmp_path: Path) -> None:
    everything = '[servers.live]\nenabled = ["*"]\n'
    async with scene(tmp_path, everything, WAYS, declared=None) as first:
        assert (await first.api("features"))["servers"] == []
        for way in WAYS:
            await _is_plain(first.at(name_of(way)))


async def _is_plain(here: Scene) -> None:
    assert await here.call("plain", {"x": 1}) is not None
    seen = {each["method"] for each in await here.seen()}
    assert not {each for each in seen if each.startswith(("featureSets", "mcpl", "context"))}
    called = (await here.seen("tools/call"))[0]["params"]
    assert "scope" not in called
    assert "mcpl" not in json.dumps(called)
    if not here.server.startswith("modern"):
        answers = await here.ask(push("talk.push"), {"method": "inference/request"})
        assert {code_of(each) for each in answers} == {-32601}


@pytest.mark.requirement("MCPL-2-compat")
@pytest.mark.parametrize("way", ["handshake pipes", "handshake http"])
async def test_a_client_that_is_a_host_itself_agrees_with_the_server_on_its_own(
    stage: Stage, way: str
) -> None:
    mine: Frame = {"experimental": {"mcpl": {"version": "0.4", "featureSets": True, "mine": 7}}}
    async with aiohttp.ClientSession() as http:
        here = Scene(*stage, http, name_of(way))
        async with here.session(mine) as client:
            told = await client.request("tools/call", {"name": "seen", "arguments": {}})
            seen = told.result["structuredContent"]["told"]
            greetings = [each for each in seen if each["method"] == "initialize"]
            assert greetings[-1]["params"]["capabilities"]["experimental"] == mine["experimental"]
            given = {"name": "edit_file", "arguments": {"path": "/project/x"}}
            called = await client.request("tools/call", given)
            assert "scope" not in called.result["structuredContent"]["told"]
            # What its operator denies is denied whoever is the host.
            refused = await client.request(
                "tools/call", {"name": "edit_file", "arguments": {"path": "/project/.env"}}
            )
            assert "may not reach" in json.dumps(refused.response)
        # Among all servers nobody is the host but the gateway.
        async with here.session(mine, "/mcp") as client:
            given["name"] = f"{here.server}__edit_file"
            called = await client.request("tools/call", given)
            assert called.result["structuredContent"]["told"]["scope"]["label"] == "/project/x"


async def test_what_is_declared_in_another_version_is_not_spoken(tmp_path: Path) -> None:
    later = {**DECLARED, "version": "1.0"}
    async with scene(tmp_path, live=LIVE, declared=later) as here:
        assert await here.call("plain", {}) is not None
        assert await here.updates() == []


@pytest.mark.requirement("MCPL-4.1-fschanged", "MCPL-6.3-wildcards", "MCPL-6.7-update")
async def test_what_a_server_can_do_anew_is_enabled_as_its_operator_said(tmp_path: Path) -> None:
    async with scene(tmp_path, LIVE, WAYS) as first:
        for way in WAYS:
            await _changes(first.at(name_of(way)))


async def _changes(here: Scene) -> None:
    bad = {"description": "Everything", "uses": ["all"]}
    added = {"talk.more": SETS["talk.push"], "else": SETS["loud"], "bad": bad}
    changed = {"added": added, "removed": ["talk.push", "never.there"]}
    assert code_of((await here.ask(push("talk.more")))[0]) == -32003
    await here.tell({"method": "featureSets/changed", "params": {"added": {"x": 7}}})
    await here.tell({"method": "featureSets/changed", "params": changed})

    async def updated() -> Frame | None:
        return next((each for each in await here.updates() if "else" in each["disabled"]), None)

    told = await until(updated)
    assert told["enabled"] == ["files.edit", "talk.more"]
    assert told["disabled"] == ["else", "files.read", "loud", "talk.hook"]
    codes = [code_of(each) for each in await here.ask(push("else"), push("talk.push"))]
    assert codes == [-32001, -32003]
    assert code_of((await here.ask(push("talk.more")))[0]) not in (-32001, -32003)


async def test_another_decision_in_the_file_counts_while_the_server_runs_on(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, LIVE, WAYS) as first:
        each = [first.at(name_of(way)) for way in WAYS]
        greeted: dict[str, int] = {}
        for here in each:
            assert code_of((await here.ask(push("loud")))[0]) == -32001
            greeted[here.server] = await _greetings(here)
        first.write('[servers.live]\nenabled = ["loud", "files.*"]\n')
        for here in each:

            async def told(here: Scene = here) -> bool:
                return (await here.updates())[-1]["enabled"] == ["files.edit", "files.read", "loud"]

            await until(told)
            assert code_of((await here.ask(push("loud")))[0]) != -32001
            assert code_of((await here.ask(push("talk.push")))[0]) == -32001
            assert await _greetings(here) == greeted[here.server], "it was started again"


async def _greetings(here: Scene) -> int:
    """How often the host itself has greeted the server."""
    found = [*await here.seen("initialize"), *await here.seen("server/discover")]
    return len([each for each in found if "pushEvents" in str(each)])


async def test_a_grant_enables_beside_the_configuration_and_denies_above_it(
    tmp_path: Path,
) -> None:
    store = f'[store]\nurl = "sqlite:///{tmp_path}/comity.db"\n'
    async with scene(tmp_path, live=LIVE, settings=store) as here:
        server = await here.api("features", "enable", body={"server": "live", "feature": "lo*"})
        stands = {each["feature"]: each for each in server["servers"][0]["features"]}
        assert stands["loud"]["enabled"]
        assert stands["loud"]["by"] not in ("configuration", "default")
        assert (
            stands["talk.hook"] | {"enabled": False, "by": "configuration"} == (stands["talk.hook"])
        )
        assert (await here.updates())[-1]["enabled"] == ["files.edit", "loud", "talk.push"]
        assert code_of((await here.ask(push("loud")))[0]) != -32001
        await here.api("features", "disable", body={"server": "live", "feature": "talk.push"})
        assert code_of((await here.ask(push("talk.push")))[0]) == -32001
        for name in ("lo*", "talk.push"):
            await here.api("features", "reset", body={"server": "live", "feature": name})
        assert (await here.updates())[-1]["enabled"] == ENABLED
        # As any other grant it can be written with `comity grants`, and ends by itself.
        grant = {
            "subject": "server:live",
            "verb": "feature/enable",
            "target": "loud",
            "effect": "allow",
            "expires_at": (datetime.now(UTC) + timedelta(seconds=2)).isoformat(),
        }
        await here.api("grants", body=grant)
        assert (await here.updates())[-1]["enabled"] == ["files.edit", "loud", "talk.push"]

        async def ended() -> bool:
            return (await here.updates())[-1]["enabled"] == ENABLED

        await until(ended)


async def test_what_a_guardrail_forbids_cannot_be_enabled(tmp_path: Path) -> None:
    forbid = '[[forbid]]\nsubject = "server:*"\nverb = "feature/*"\ntarget = "talk.*"\n'
    async with scene(tmp_path, live=LIVE, settings=forbid) as here:
        assert (await here.updates())[0]["enabled"] == ["files.edit"]
        (answer,) = await here.ask(push("talk.push"))
        assert answer["error"]["data"]["canEnable"] is False


@pytest.mark.parametrize("way", ["handshake pipes", "modern http"])
async def test_one_servers_flood_is_bounded_and_holds_up_nobody(tmp_path: Path, way: str) -> None:
    many = MAX_ACTIVE_REQUESTS + 36
    scope: Frame = {"label": "/elsewhere", "payload": {}}
    asked: Frame = {
        "method": "scope/elevate",
        "params": {"featureSet": "files.edit", "scope": scope},
    }
    async with scene(tmp_path, LIVE, [way], settings='[approvals]\nrequest_ttl = "60s"\n') as here:
        flood = asyncio.ensure_future(here.ask(*[asked] * many))
        ask = await here.open_ask()
        # All of them ask the same, so one answer is good for all that were taken.
        async with here.session() as client:
            reply = await client.request("tools/call", {"name": "plain", "arguments": {}})
            assert reply.result["structuredContent"]["told"]["name"] == "plain"
        await here.say(ask, "accept")
        answers = await flood
    refused = [each for each in answers if "error" in each]
    assert len(refused) == many - MAX_ACTIVE_REQUESTS
    assert {code_of(each) for each in refused} == {-32603}
    assert all(each["result"]["approved"] for each in answers if "result" in each)


async def test_a_server_that_says_too_often_that_it_can_do_something_else_is_not_heard(
    tmp_path: Path,
) -> None:
    change = {"method": "featureSets/changed", "params": {"added": {"x": SETS["loud"]}}}
    async with scene(tmp_path, live=LIVE) as here:
        await here.tell(*[change] * 500)
        assert len(await here.updates()) < 100

        async def noted() -> Frame | None:
            found = await here.entries("feature_refused")
            return found[-1] if found else None

        assert (await until(noted))["details"]["outcome"] == "exhausted"
        assert code_of((await here.ask(push("loud")))[0]) == -32001
