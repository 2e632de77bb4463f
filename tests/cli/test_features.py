"""`comity features`, as somebody types it, and what it shows of live servers."""

from collections.abc import Generator

import pytest

from tests.cli.program import Desk
from tests.live.talker_scene import BOUNDS, talking

LIVE = '[servers.live]\nenabled = ["talk.*", "files.edit"]\ndisabled = ["talk.hook"]\n' + BOUNDS


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with talking(tmp_path_factory.mktemp("features"), live=LIVE) as (origin, _, _):
        yield origin


def test_each_set_is_shown_with_how_it_stands_and_why(desk: Desk, gateway: str) -> None:
    ran = desk.run("features", "--url", gateway)
    assert ran.status == 0
    assert ran.lines[0].split() == ["SERVER", "FEATURE", "SET", "STANDS", "BY", "USES", "BECAUSE"]
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
        found = desk.run("features", *order, "--json", "--url", gateway).json["servers"][0]
        (one,) = [each for each in found["features"] if each["feature"] == "loud"]
        return one["enabled"], one["by"], one["because"]

    enabled = stands("enable", "live", "loud", "--because", "it is wanted")
    assert enabled == (True, "person:local", "it is wanted")
    granted = desk.run("grants", "--json", "--url", gateway).json["grants"]
    mine = [each for each in granted if each["verb"] == "feature/enable"]
    assert [(each["subject"], each["target"]) for each in mine] == [("server:live", "loud")]
    assert stands("disable", "live", "loud")[:2] == (False, "person:local")
    assert stands("forget", "live", "loud") == (False, "default", "nobody has enabled it")
    assert stands("list", "--server", "live") == (False, "default", "nobody has enabled it")


def test_where_no_live_server_is_that_is_said(desk: Desk, gateway: str) -> None:
    ran = desk.run("features", "--server", "nowhere", "--url", gateway)
    assert (ran.status, ran.lines[0][:26]) == (0, "No live server is there; p")
    assert desk.run("features", "enable", "live", "  ", "--url", gateway).status != 0
