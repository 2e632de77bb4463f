"""`comity servers features` and `comity servers state`."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from comity.live.commands import draw_branches
from tests.cli.program import Desk
from tests.cli.scripted_gateway import JSON, Heard, Said, scripted_gateway
from tests.live.talker_scene import BOUNDS, talking

LIVE = '[servers.live]\nenabled = ["talk.*", "files.edit"]\ndisabled = ["talk.hook"]\n' + BOUNDS


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with talking(tmp_path_factory.mktemp("features"), live=LIVE) as (origin, _, _):
        yield origin


def test_each_set_is_shown_with_how_it_stands_and_why(desk: Desk, gateway: str) -> None:
    ran = desk.run("servers", "features", "--url", gateway)
    assert ran.status == 0
    assert ran.lines[0].split() == [
        "SERVER",
        "FEATURE",
        "STATUS",
        "DECIDED",
        "BY",
        "USES",
        "REASON",
    ]
    rows = {line.split()[1]: line for line in ran.lines[1:] if line.startswith("live")}
    assert list(rows) == ["files.edit", "files.read", "loud", "talk.hook", "talk.push"]
    assert rows["files.edit"].split()[2:4] == ["enabled", "configuration"]
    assert "reaches /project/**, never **/.env" in ran.out.replace("\n", " ").replace("  ", " ")
    assert rows["loud"].split()[2:4] == ["disabled", "default"]
    assert "the configuration disables it" in rows["talk.hook"]


def test_a_set_is_enabled_and_disabled_and_what_was_decided_forgotten(
    desk: Desk, gateway: str
) -> None:
    def stands(*order: str) -> tuple[bool, str, str]:
        found = desk.run("servers", "features", *order, "-o", "json", "--url", gateway).json[
            "servers"
        ][0]
        (one,) = [each for each in found["features"] if each["feature"] == "loud"]
        return one["enabled"], one["by"], one["reason"]

    enabled = stands("enable", "live", "loud", "--reason", "it is wanted")
    assert enabled == (True, "person:local", "it is wanted")
    granted = desk.run("grants", "-o", "json", "--url", gateway).json["grants"]
    mine = [each for each in granted if each["verb"] == "feature/enable"]
    assert [(each["subject"], each["target"]) for each in mine] == [("server:live", "loud")]
    assert stands("disable", "live", "loud")[:2] == (False, "person:local")
    assert stands("reset", "live", "loud") == (False, "default", "it is not enabled")
    assert stands("list", "--server", "live") == (False, "default", "it is not enabled")


def test_where_no_live_server_is_that_is_said(desk: Desk, gateway: str) -> None:
    ran = desk.run("servers", "features", "--server", "nowhere", "--url", gateway)
    assert (ran.status, ran.lines[0][:26]) == (0, "There is no live server. P")
    assert desk.run("servers", "features", "enable", "live", "  ", "--url", gateway).status != 0


AT = "2026-07-28T12:00:00Z"


def node(name: str, follows: str | None = None, **more: Any) -> dict[str, Any]:
    plain = {"checkpoint": name, "parent": follows, "follows": follows, "holds": "data"}
    rest = {"stored_as": "data", "bytes": 7, "at": AT, "drop_reason": None, "is_lost": False}
    return {**plain, **rest, "is_current": False, "is_on_line": True, **more}


def drawn(*nodes: dict[str, Any]) -> list[str]:
    return [prefix + each["checkpoint"] for prefix, each in draw_branches(nodes)]


def test_what_follows_one_by_one_stays_in_its_column() -> None:
    nodes = [node("c0"), *(node(f"c{n}", f"c{n - 1}") for n in range(1, 5_000))]
    assert drawn(*nodes) == [f"c{n}" for n in range(5_000)]


def test_each_way_gets_a_column_of_its_own() -> None:
    assert drawn(
        node("a"),
        node("b", "a"),
        node("c", "b"),
        node("d", "a"),
        node("e", "b"),
        node("f", "d"),
        node("other"),
    ) == ["a", "├─b", "│ ├─c", "│ └─e", "└─d", "  f", "other"]


def _telling(tree: dict[str, Any], **said: Any) -> Any:
    def script(heard: Heard) -> Said:
        if heard.verb == "POST":
            answer: Any = said
        elif heard.path == "/api/state":
            answer = {"state": [{"server": "desk", "feature_set": None}]}
        else:
            answer = tree
        return 200, JSON, json.dumps(answer).encode()

    return script


TREE = {
    "server": "desk",
    "feature_set": None,
    "head": "c29",
    "can_roll_back": False,
    "checkpoints": [
        *(node(f"c{n}", f"c{n - 1}" if n else None) for n in range(29)),
        node("c29", "c28", is_current=True, holds="reference", drop_reason="\x1b[31mlong"),
    ],
}


def test_of_a_long_tree_the_end_is_shown(desk: Desk) -> None:
    with scripted_gateway(_telling(TREE)) as gateway:
        ran = desk.run("servers", "state", "--url", gateway.url)
        assert ran.status == 0
        assert ran.lines[0].split() == ["desk", "as", "a", "whole"]
        assert "(18 earlier" in ran.lines[1]
        assert ran.lines[-1].split()[:3] == ["●", "c29", "reference"]
        # What strangers wrote does not steer a terminal.
        assert "\x1b" not in ran.out
        assert "its state is not stored" in ran.out
        whole = desk.run("servers", "state", "show", "desk", "*", "--url", gateway.url)
        assert len(whole.lines) == 32
        assert [each.path for each in gateway.of("GET")][-1] == "/api/state/desk/%2A"
        listed = desk.run("servers", "state", "-o", "json", "--url", gateway.url)
        assert listed.json == {"state": [{"server": "desk", "feature_set": None}]}
        shown = desk.run(
            "servers", "state", "show", "desk", "*", "-o", "json", "--url", gateway.url
        )
        assert shown.json["head"] == "c29"


def test_a_state_that_only_its_server_has_is_told_as_that(desk: Desk) -> None:
    with scripted_gateway(_telling(node("c1", drop_reason="too long"))) as gateway:
        ran = desk.run("servers", "state", "show", "desk", "notes", "c1", "--url", gateway.url)
        assert ran.out.startswith(
            "Only server desk has this state. its state is not stored: too long"
        )


def test_a_rollback_that_fails_is_told_and_ends_so(desk: Desk) -> None:
    said: dict[str, Any] = {"success": False, "reason": None, "checkpoint": "c1"}
    with scripted_gateway(_telling(TREE, **said)) as gateway:
        ran = desk.run("servers", "state", "rollback", "desk", "notes", "c1", "--url", gateway.url)
        assert (ran.status, "it gives no reason" in ran.out) == (1, True)
        (asked,) = gateway.of("POST")
        assert (asked.path, asked.frame) == (
            "/api/state/desk/notes/rollback",
            {"checkpoint": "c1"},
        )
        told = desk.run(
            "servers",
            "state",
            "rollback",
            "desk",
            "notes",
            "c1",
            "-o",
            "json",
            "--url",
            gateway.url,
        )
        assert (told.status, told.json["success"]) == (1, False)


def test_that_there_is_none_is_said(desk: Desk) -> None:
    def script(heard: Heard) -> Said:
        return 200, JSON, b'{"state": [], "dropped": 0}'

    with scripted_gateway(script) as gateway:
        assert (
            "No server has stored state." in desk.run("servers", "state", "--url", gateway.url).out
        )
        ran = desk.run(
            "servers", "state", "delete", "desk", "notes", "-o", "json", "--url", gateway.url
        )
        assert ran.json["dropped"] == 0
