"""`comity permissions`, `tools changes` and `tools accept`, as somebody types them."""

from collections.abc import Generator

import pytest

from tests.cli.program import Desk
from tests.conformance.guarding import guarded, guarding


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    look: dict[str, object] = {
        "name": "look",
        "description": "Looks\u200b.",
        "security": {"permissions_required": []},
    }
    with guarding(
        tmp_path_factory.mktemp("gateway"),
        mail=guarded("shell", "camera", approval_policy="interactive"),
        odd=guarded(tools=[look]),
        new=guarded(tools=[{"name": "look", "description": "Looks."}], definitions="approve"),
    ) as house:
        yield house.origin


def test_what_waits_is_listed_and_can_be_decided(desk: Desk, gateway: str) -> None:
    ran = desk.run("permissions", "--url", gateway)
    assert ran.status == 1, "somebody has to decide"
    assert ran.lines[0].split()[:4] == ["SERVER", "PERMISSION", "RISK", "DECISION"]
    assert ran.lines[1].split()[:4] == ["mail", "shell.execute", "dangerous", "deferred"]
    shown = desk.run("servers", "show", "mail", "--url", gateway)
    assert "What it needs to do its work:" in shown.lines
    order = ("mail", "shell", "--expires", "8h", "--because", "it deploys", "--url", gateway)
    approved = desk.run("permissions", "approve", *order)
    assert (approved.status, "it deploys" in approved.out) == (0, True)
    denied = desk.run("permissions", "deny", "mail", "camera", "--json", "--url", gateway)
    assert denied.json["permissions"][0]["decision"] == "denied"
    settled = desk.run("permissions", "list", "--server", "mail", "--url", gateway)
    assert (settled.status, "person:local" in settled.out) == (0, True)
    forgotten = desk.run("permissions", "forget", "mail", "camera", "--url", gateway)
    assert "deferred" in forgotten.out
    early = desk.run("permissions", "approve", "mail", "memory.read", "--url", gateway)
    assert "has not said that it needs memory.read" in early.out


def test_where_nothing_is_needed_that_is_said(desk: Desk, gateway: str) -> None:
    ran = desk.run("permissions", "--server", "odd", "--url", gateway)
    assert (ran.status, ran.lines) == (0, ["No server has said that it needs a permission."])
    listed = desk.run("permissions", "--server", "odd", "--json", "--url", gateway)
    assert listed.json == {"permissions": []}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("approve", "nowhere", "camera"), "there is no server 'nowhere'"),
        (("approve", "mail", "a*b"), "no permission can be named"),
        (("approve", "mail", "camera", "--expires", "soon"), "must be a time"),
    ],
)
def test_a_mistake_is_told(desk: Desk, gateway: str, arguments: tuple[str, ...], told: str) -> None:
    ran = desk.run("permissions", *arguments, "--url", gateway)
    assert (ran.status, told in ran.err) == (2, True), ran.err


def test_what_a_tool_hides_is_shown_and_can_be_accepted(desk: Desk, gateway: str) -> None:
    ran = desk.run("tools", "changes", "odd", "--url", gateway)
    assert ran.status == 1, "a tool waits"
    assert ran.lines[:2] == ["odd look", "may deceive its readers"]
    assert r"\u{200b}" in ran.out
    assert desk.run("tools", "accept", "odd", "--url", gateway).status == 2
    both = desk.run("tools", "accept", "odd", "look", "nothing", "--url", gateway)
    assert (both.status, both.lines[0]) == (1, "Accepted of odd: look")
    assert desk.run("call", "odd__look", "--url", gateway).status == 0
    one = desk.run("tools", "changes", "odd", "look", "--json", "--url", gateway)
    assert (one.status, one.json["tools"][0]["state"]) == (0, "accepted")


def test_a_new_server_is_accepted_as_a_whole(desk: Desk, gateway: str) -> None:
    assert "waits to be accepted" in desk.run("tools", "changes", "new", "--url", gateway).out
    ran = desk.run("tools", "accept", "new", "--all", "--json", "--url", gateway)
    assert (ran.status, "look" in ran.json["accepted"]) == (0, True)
    left = desk.run("tools", "changes", "new", "--url", gateway)
    assert (left.status, left.lines) == (0, ["Every tool is as it was accepted."])
