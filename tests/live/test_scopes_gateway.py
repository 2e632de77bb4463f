"""How far live servers reach, through a real gateway, in both eras and on both transports. (§7)"""

import json
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import aiohttp
import pytest

from comity.live.scopes.service import SCOPE_ENRICHMENT_KEY
from tests.live.talker_scene import (
    BOUNDS,
    WAYS,
    Composed,
    Frame,
    Scene,
    code_of,
    meanwhile,
    name_of,
    talking,
)

pytestmark = pytest.mark.integration
LIVE = '[servers.live]\nenabled = ["talk.*", "files.edit"]\n' + BOUNDS
SETTINGS = (
    '[approvals]\nrequest_ttl = "120s"\napproval_ttl = "10m"\n'
    'client_wait = "60s"\ndenial_cooldown = "1s"\n'
)
type Stage = tuple[str, Path, Composed]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    with talking(tmp_path_factory.mktemp("scopes"), WAYS, LIVE, SETTINGS) as found:
        yield found


@pytest.fixture(params=WAYS)
async def here(stage: Stage, request: pytest.FixtureRequest) -> AsyncGenerator[Scene]:
    async with aiohttp.ClientSession() as http:
        yield Scene(*stage, http, name_of(request.param))


@pytest.fixture
async def one(stage: Stage) -> AsyncGenerator[Scene]:
    async with aiohttp.ClientSession() as http:
        yield Scene(*stage, http, name_of(WAYS[0]))


async def refusal_of(here: Scene, tool: str, **given: object) -> str:
    """What a call was refused with; the server never saw it."""
    before = len(await here.seen("tools/call"))
    async with here.session() as client:
        reply = await client.request("tools/call", {"name": tool, "arguments": given})
    assert len(await here.seen("tools/call")) == before + 1, "the server was called"
    return json.dumps(reply.response)


@pytest.mark.requirement("MCPL-7.7-tag", "MCPL-7.7-validate")
async def test_a_call_within_its_bounds_bears_the_scope_that_its_arguments_say(
    here: Scene,
) -> None:
    told = await here.call("edit_file", {"path": "/project//src/../tides.py"})
    assert told["scope"] == {
        "label": "/project/tides.py",
        "payload": {"path": "/project//src/../tides.py"},
    }
    assert told["arguments"] == {"path": "/project//src/../tides.py"}
    # The other door, and the other era.
    async with here.session() as client:
        given = {"name": "edit_file", "arguments": {"path": "/project/x"}}
        reply = await client.request("tools/call", given)
    assert reply.result["structuredContent"]["told"]["scope"]["label"] == "/project/x"


@pytest.mark.requirement("MCPL-7.7-tag")
async def test_what_a_client_says_of_a_scope_is_not_passed_on(here: Scene) -> None:
    claimed = {"label": "/etc", "payload": {"path": "/etc/hosts"}}
    told = await here.call("plain", {}, scope=claimed)
    assert "scope" not in told
    told = await here.call("edit_file", {"path": "/project/x"}, scope=claimed)
    assert told["scope"]["label"] == "/project/x"


@pytest.mark.requirement("MCPL-7.6-black", "MCPL-7.7-validate", "MCPL-7.2-semantics")
@pytest.mark.parametrize(
    "path",
    ["/project/.env", "/project/x/../.ENV", "/project/%2eenv", "/project/secrets/key", "../.env"],
)
async def test_what_is_blacklisted_is_refused_however_it_is_written(one: Scene, path: str) -> None:
    assert "may not reach" in await refusal_of(one, "edit_file", path=path)


async def test_a_blacklisted_path_is_refused_on_every_way(here: Scene) -> None:
    assert "may not reach" in await refusal_of(here, "edit_file", path="/project/.env")
    assert "may not reach" in await refusal_of(here, "move_files", paths=["/project/a", "/.env"])


async def test_a_call_that_does_not_say_what_it_reaches_is_refused(one: Scene) -> None:
    assert "/path of the arguments" in await refusal_of(one, "edit_file", file="/project/x")
    assert "/path of the arguments" in await refusal_of(one, "edit_file", path=7)


@pytest.mark.requirement("MCPL-6.6-disabled")
async def test_a_tool_of_a_set_that_is_not_enabled_is_refused_and_says_what_to_do(
    here: Scene,
) -> None:
    told = await refusal_of(here, "read_file", path="/project/x")
    assert f"comity servers features enable {here.server} files.read" in told


@pytest.mark.requirement("MCPL-7.6-ask", "MCPL-7.6-cache", "MCPL-13.1-mitigate")
async def test_what_is_neither_is_asked_once_and_then_allowed_for_a_while(here: Scene) -> None:
    path = f"/etc/hosts-of-{here.server}"
    async with meanwhile(here.call("edit_file", {"path": path})) as call:
        ask = await here.open_ask()
        assert (ask["kind"], ask["server"], ask["tool"]) == ("scope", here.server, "edit_file")
        assert ask["about"] == {
            "feature_set": "files.edit",
            "label": path,
            "payload": {"path": path},
        }
        await here.say(ask, "accept")
        told = await call
    assert told["scope"]["label"] == path
    # For a while nobody is asked again: neither for other words about it, nor by the other era.
    assert (await here.call("edit_file", {"path": path, "text": "more"}))["scope"]["label"] == path
    assert (await here.api("approvals"))["approvals"] == []
    # Another place is another question.
    async with meanwhile(here.answer("edit_file", {"path": path + "x"})) as call:
        ask = await here.open_ask()
        await here.say(ask, "decline")
        assert (await call)["isError"]


async def test_a_call_that_waits_hears_of_progress(one: Scene) -> None:
    heard: list[Frame] = []
    async with one.session() as client:
        asked = {
            "name": "edit_file",
            "arguments": {"path": "/opt/waits"},
            "_meta": {"progressToken": "p-1"},
        }
        async with meanwhile(client.request("tools/call", asked)) as call:
            ask = await one.open_ask()
            await one.say(ask, "accept")
            exchange = await call
        heard = exchange.said("notifications/progress")
    assert heard[0]["params"]["progressToken"] == "p-1"
    assert exchange.result["structuredContent"]["told"]["scope"]["label"] == "/opt/waits"


async def test_several_places_are_asked_about_together(one: Scene) -> None:
    given = {"paths": ["/project/a", "/srv/b"]}
    async with meanwhile(one.call("move_files", given)) as call:
        ask = await one.open_ask()
        assert ask["about"]["payload"] == given
        await one.say(ask, "accept")
        told = await call
    assert told["scope"] == {"label": "/project/a, /srv/b", "payload": given}


async def test_a_scoped_tool_of_which_nobody_said_how_far_it_reaches_is_asked(one: Scene) -> None:
    async with meanwhile(one.call("edit_unsaid", {"anything": 1})) as call:
        ask = await one.open_ask()
        assert ask["about"]["label"] == "edit_unsaid"
        await one.say(ask, "accept")
        assert "scope" not in await call


@pytest.mark.requirement(
    *("MCPL-4.1-elevate", "MCPL-7.5-approved", "MCPL-7.5-payload", "MCPL-7.5-reason"),
    *("MCPL-7.5-enrich", "MCPL-7.5-enrichreturn", "MCPL-7.6-black"),
)
async def test_an_elevation_is_allowed_or_denied_at_once_where_it_is_clear(here: Scene) -> None:
    allowed = await here.elevate("/project/a", path="/project//a", mode="append")
    assert allowed["result"] == {
        "approved": True,
        "payload": {
            "path": "/project//a",
            "mode": "append",
            SCOPE_ENRICHMENT_KEY: {"label": "/project/a"},
        },
    }
    denied = (await here.elevate("/project/.env", path="/project/.env"))["result"]
    assert denied["approved"] is False
    assert denied["reason"]
    assert "payload" not in denied
    assert code_of(await here.elevate("/x", "files.read", path="/x")) == -32001
    assert code_of(await here.elevate("/x", "files.none", path="/x")) == -32003


@pytest.mark.requirement("MCPL-7.6-ask", "MCPL-7.6-cache", "MCPL-7.5-payload")
async def test_an_elevation_beyond_is_a_persons_to_say_and_bound_to_what_it_names(
    here: Scene,
) -> None:
    label = f"/var/{here.server}"
    payload = {"path": label, "token": "Bearer sk-verysecret-0123456789abcdef"}
    async with meanwhile(here.elevate(label, **payload)) as elevation:
        ask = await here.open_ask()
        assert ask["requester"] == f"server:{here.server}"
        assert "verysecret" not in json.dumps(ask)
        await here.say(ask, "accept")
        found = (await elevation)["result"]
    assert found["approved"] is True
    assert found["payload"]["token"] == payload["token"]
    assert found["payload"][SCOPE_ENRICHMENT_KEY]["until"]
    again = (await here.elevate(label, **payload))["result"]
    assert again["approved"] is True
    assert (await here.api("approvals"))["approvals"] == []
    async with meanwhile(here.elevate(label, **payload, mode="write")) as elevation:
        ask = await here.open_ask()
        await here.say(ask, "decline", reason="not today")
        found = (await elevation)["result"]
    assert found == {"approved": False, "reason": "not today"}


async def test_a_label_that_says_one_thing_where_the_payload_says_another_is_asked(
    one: Scene,
) -> None:
    """D-62: what a server calls it allows nothing by itself."""
    async with meanwhile(one.elevate("/project/x", path="/etc/passwd", note="/project/x")) as said:
        ask = await one.open_ask()
        assert ask["about"]["payload"]["path"] == "/etc/passwd"
        await one.say(ask, "decline")
        assert (await said)["result"]["approved"] is False


@pytest.mark.requirement("MCPL-13.2-audit")
async def test_what_was_decided_of_a_scope_is_in_the_journal(one: Scene) -> None:
    await one.elevate("/project/journal", path="/project/journal")
    await refusal_of(one, "edit_file", path="/project/.env")
    found = await one.entries("scope_decided")
    labels = {(each["details"].get("label"), each["result"]) for each in found}
    assert ("/project/journal", "SUCCESS") in labels
    assert ("/project/.env", "BLOCKED") in labels
    assert {each["details"]["feature_set"] for each in found} <= {"files.edit", "files.read"}
