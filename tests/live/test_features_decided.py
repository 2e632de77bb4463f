"""Feature sets that are decided anew while servers run, and servers that do too much. (MCPL §6)"""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from comity.kernel.live.load import MOST_ASKED
from tests.live.talker_scene import (
    BOUNDS,
    SETS,
    WAYS,
    Frame,
    Scene,
    code_of,
    name_of,
    push,
    scene,
    until,
)

LIVE = '[servers.live]\nenabled = ["talk.*", "files.edit"]\ndisabled = ["talk.hook"]\n' + BOUNDS
ENABLED = ["files.edit", "talk.push"]


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
            await here.api("features", "forget", body={"server": "live", "feature": name})
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
    many = MOST_ASKED + 36
    scope: Frame = {"label": "/elsewhere", "payload": {}}
    asked: Frame = {
        "method": "scope/elevate",
        "params": {"featureSet": "files.edit", "scope": scope},
    }
    async with scene(tmp_path, LIVE, [way], settings='[asks]\nexpires = "60s"\n') as here:
        flood = asyncio.ensure_future(here.ask(*[asked] * many))
        ask = await here.open_ask()
        # All of them ask the same, so one answer is good for all that were taken.
        async with here.session() as client:
            reply = await client.request("tools/call", {"name": "plain", "arguments": {}})
            assert reply.result["structuredContent"]["told"]["name"] == "plain"
        await here.say(ask, "accept")
        answers = await flood
    refused = [each for each in answers if "error" in each]
    assert len(refused) == many - MOST_ASKED
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
