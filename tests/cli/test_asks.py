"""`comity asks`, `approve` and `deny`: at a gateway, at a terminal, and in a store alone."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.asking_gateway import ANA, NOBODY_THERE, Asked, asking_gateway, made_ready
from tests.cli.program import COMITY, SECONDS, Desk, Terminal

# Every command is a program of its own, on a machine that may have much else to do.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Generator[Asked]:
    with asking_gateway(tmp_path_factory.mktemp("asked")) as asked:
        yield asked


@pytest.mark.requirement("MCP-5.1-hitl", "MGP-4.4-dangerous")
def test_what_waits_is_listed_shown_and_approved(asked: Asked) -> None:
    id = asked.ask(message="to be approved")
    listed = asked.run("asks")
    (row,) = [line for line in listed.lines if "to be approved" in line]
    assert row.startswith(id[:8])
    assert "dangerous" in row
    shown = asked.run("asks", "show", id[:10])
    for part in ("agent:ci wants to call example__echo", '"message": "to be approved"', "Expires"):
        assert part in shown.out
    approved = asked.run("approve", id[:10], "--reason", "as agreed")
    assert (approved.status, "approved it: as agreed" in approved.out) == (0, True)
    assert asked.written(message="to be approved") == "to be approved"
    again = asked.run("approve", id)
    assert (again.status, "one call" in again.out) == (1, True)
    assert "to be approved" not in asked.run("asks").out
    assert "used" in asked.run("asks", "--all").out


@pytest.mark.requirement("MCP-5.1-hitl", "MGP-4.4-dangerous")
def test_what_is_denied_does_not_run_and_says_why(asked: Asked) -> None:
    id = asked.ask(message="to be denied")
    denied = asked.run("deny", id, "--reason", "not today")
    assert denied.status == 0
    told = asked.call(message="to be denied")["error"]
    assert "not today" in told["message"]
    assert asked.run("deny", id).status == 1
    found = asked.run("asks", "--state", "declined", "--json").json["asks"]
    assert id in [each["id"] for each in found]


def test_programs_read_the_same_as_json(asked: Asked) -> None:
    id = asked.ask(message="for programs")
    found = asked.run("asks", "--json").json["asks"]
    (view,) = [each for each in found if each["id"] == id]
    assert view["about"]["arguments"] == {"message": "for programs"}
    assert asked.run("asks", "show", id, "--json").json["id"] == id
    assert asked.run("deny", id, "--json").json["state"] == "declined"


def test_nobody_else_sees_or_answers_it(asked: Asked) -> None:
    id = asked.ask(message="for ana alone")
    own = asked.run("approve", id, key=asked.agent)
    assert own.status == 2
    assert "only a person can answer this" in own.err
    assert "You cannot answer it" in asked.run("asks", "show", id, key=asked.agent).out
    for words in (("asks", "show", "zzzzzzzz"), ("approve", "zzzzzzzz"), ("asks", "show", "x")):
        assert asked.run(*words).status == 2
    assert asked.run("approve", id, key="wrong").status == 2
    asked.run("deny", id)


def test_always_and_links_are_for_those_who_administer(asked: Asked) -> None:
    id = asked.ask(message="not for good")
    remembered = asked.run("approve", id, "--remember")
    assert remembered.status == 2
    assert "admin/write" in remembered.err
    assert "admin/write" in asked.run("asks", "link", id, "--for", ANA).err
    assert asked.run("deny", id).status == 0


def test_at_a_terminal_it_is_shown_what_would_run_before_it_is_approved(asked: Asked) -> None:
    trick = "\x1b[2J\u202eharmless\nRisk  safe"
    id = asked.ask(message=trick)
    desk = asked.desk
    desk.env |= {"COMITY_URL": asked.origin, "COMITY_KEY": asked.person}
    with Terminal(desk, "approve", id) as terminal:
        terminal.until("[y/N]")
        for part in ("Asked by", "agent:ci", "echo", "dangerous", "Definition", "Expires"):
            assert part in terminal.seen
        assert "\x1b[2J" not in terminal.seen
        assert "\u202e" not in terminal.seen
        assert "\nRisk  safe" not in terminal.seen.replace("\r", "")
        assert "x1b[2J" in terminal.seen
        terminal.type("n\n")
        terminal.until("Nothing was said")
        assert terminal.end() == 1
    assert asked.run("asks", "show", id, "--json").json["state"] == "pending"
    with Terminal(desk, "approve", id) as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        terminal.until("It is approved")
        assert terminal.end() == 0
    assert asked.written(message=trick) == trick


def test_a_terminal_that_watches_shows_what_comes_and_goes(asked: Asked) -> None:
    desk = asked.desk
    desk.env |= {"COMITY_URL": asked.origin, "COMITY_KEY": asked.person}
    for left in asked.run("asks", "--json").json["asks"]:
        asked.run("deny", left["id"])
    with Terminal(desk, "asks", "--watch") as terminal:
        terminal.until("\x1b[")
        id = asked.ask(message="watched")
        terminal.until(id[:8])
        assert "watched" in terminal.seen
        terminal.seen = ""
        asked.run("deny", id)
        terminal.until("Nothing waits")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() in (130, -signal.SIGINT)


def line_of(program: "subprocess.Popen[str]", part: str) -> str:
    """The next line with this in it."""
    assert program.stdout is not None
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if select.select([program.stdout], [], [], 0.5)[0]:
            line = program.stdout.readline()
            if part in line:
                return line
    raise AssertionError(f"no line with {part!r}")


def test_piped_each_change_is_a_line(asked: Asked) -> None:
    env = {**asked.desk.env, "COMITY_URL": asked.origin, "COMITY_KEY": asked.person}
    before = asked.ask(message="before it is watched")
    program = subprocess.Popen(
        [COMITY, "asks", "--watch", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **env},
        text=True,
        bufsize=1,
    )
    try:
        assert json.loads(line_of(program, before))["state"] == "pending"
        id = asked.ask(message="while it is watched")
        assert json.loads(line_of(program, id))["about"]["arguments"] == {
            "message": "while it is watched"
        }
        for each in (before, id):
            asked.run("deny", each)
            assert json.loads(line_of(program, each))["state"] == "declined"
    finally:
        program.kill()
        program.wait(SECONDS)
        assert program.stdout is not None
        program.stdout.close()


def test_who_watches_where_nobody_answers_is_told_so(desk: Desk) -> None:
    assert desk.run("asks", "--watch", **NOBODY_THERE).status == 3


def test_without_a_gateway_the_store_itself_is_asked(tmp_path: Path) -> None:
    with asking_gateway(tmp_path) as asked:
        id = asked.ask(message="left behind")
        other = asked.ask(message="also left behind")
        desk = asked.desk
    listed = desk.run("asks", **NOBODY_THERE)
    assert "left behind" in listed.out
    made = desk.run("asks", "link", id, "--for", ANA, "--offline")
    assert f"/asks/{id}?t=" in made.out
    assert len(made.lines) == 1
    approved = desk.run("approve", id[:12], "--remember", "--offline")
    assert approved.status == 0, approved.err
    assert "Granted for good: agent:ci may call example/echo." in approved.out
    assert desk.run("deny", other, "--offline").status == 0
    told = desk.run("journal", "search", "--json", **NOBODY_THERE)
    assert told.out.count("ask_answered") >= 2
    assert "ACCESS_GRANTED" in told.out


def test_an_empty_inbox_says_so(tmp_path: Path) -> None:
    desk, _, _ = made_ready(tmp_path)
    assert "Nothing waits" in desk.run("asks", **NOBODY_THERE).out
    assert "There are none" in desk.run("asks", "--all", **NOBODY_THERE).out
