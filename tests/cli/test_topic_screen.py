"""`comity topic join` at a terminal: what is seen there, what is typed, and what a key decides."""

import contextlib
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.program import SECONDS, Desk, Terminal
from tests.cli.topic_gateway import ANA, BOT, WORKER, TopicHouse, topic_house

# Each seat is a program of its own, on a machine that may have much else to do.
pytestmark = pytest.mark.timeout(300)
LOOKING = "approve exactly this"


@pytest.fixture(scope="module")
def house() -> Generator[TopicHouse]:
    with topic_house() as house:
        yield house


@pytest.fixture
def seat(house: TopicHouse, tmp_path: Path) -> Generator[Terminal]:
    """Ana at her terminal, in the topic."""
    desk = Desk(tmp_path, **house.shown(ANA))
    with Terminal(desk, "topic", "join", "ops") as terminal:
        terminal.until("/help")
        yield terminal


def look(seat: Terminal, part: str) -> None:
    """Look at the proposal that waits; this stands in it."""
    seat.type("\t")
    seat.until(LOOKING)
    assert part in seat.seen


def press(seat: Terminal, key: str, text: str) -> None:
    """Press a key until it shows: what is pressed before something is drawn does not count."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        seat.type(key)
        with contextlib.suppress(AssertionError):
            seat.until(text, 3)
            return
    raise AssertionError(seat.seen)


@pytest.mark.requirement("MCPX-2.1-governance", "MCPX-2.1-isolation")
def test_a_person_talks_sees_a_proposal_in_full_and_approves_it(
    house: TopicHouse, seat: Terminal
) -> None:
    with house.member("ops", BOT) as bot, house.member("ops", WORKER) as worker:
        seat.until("3 here")
        bot.chat("good morning")
        seat.until("good morning")
        seat.type("good day\r")
        assert bot.until("chat", **{"from": ANA})["payload"]["text"] == "good day"
        proposal = bot.propose("restart", {"service": "web", "hard": True}, WORKER)
        seat.until("Tab looks at a proposal")
        look(seat, "Expires")
        for part in ("tools/call", "restart", '"service": "web"', '"hard": true', BOT, WORKER):
            assert part in seat.seen
        press(seat, "a", " approve [1]")
        request = worker.until("mcp/request")
        assert request["correlation_id"] == proposal
        assert request["payload"]["params"]["arguments"] == {"service": "web", "hard": True}
        worker.answer(request, "restarted it", BOT)
        seat.until("restarted it")
        bot.close()
        seat.until(" has left")
    seat.type("\x15\x04")
    assert seat.end() == 0
    assert "\x1b[?2004l" in seat.seen


def test_what_was_typed_ahead_or_pasted_approves_nothing(house: TopicHouse, seat: Terminal) -> None:
    with house.member("ops", BOT) as bot, house.member("ops", WORKER) as worker:
        bot.propose("erase", {"path": "/srv"}, WORKER)
        seat.until("erase")
        seat.type("\ta")
        seat.until(LOOKING)
        press(seat, "\x1b[200~a\x1b[201~aa\x1ba\x15", "looks at a proposal")
        look(seat, "/srv")
        press(seat, "d", " decline [1]")
        assert "decline" in worker.until("chat")["payload"]["text"]
        assert [each for each in worker.heard if each["kind"].startswith("mcp/request")] == []


def test_nothing_that_others_write_steers_the_terminal(house: TopicHouse, seat: Terminal) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\u202etxt\x9b31m"
    with house.member("ops", BOT) as bot:
        bot.chat(f"{hostile} chatted")
        bot.propose("x", {hostile: hostile, "n": 1}, ANA)
        seat.until("chatted")
        seat.until("Tab looks")
        seen = seat.seen
        look(seat, '"n": 1')
        for part in ("\x1b[2J", "\x1b]", "\u202e", "\x9b", "\x07"):
            assert part not in seen + seat.seen


def test_who_is_to_do_it_is_said_where_a_proposal_names_nobody(
    house: TopicHouse, seat: Terminal
) -> None:
    with house.member("ops", BOT) as bot, house.member("ops", WORKER) as worker:
        seat.until(WORKER)
        bot.propose("tidy", {}, *())
        seat.until("tidy")
        look(seat, "nobody in particular")
        press(seat, "a", "/approve 1 ")
        seat.until("names nobody")
        seat.type(f"\x15/approve 1 {WORKER[:9]}\t\r")
        seat.until(LOOKING)
        press(seat, "a", " approve [1]")
        assert worker.until("mcp/request")["to"] == [WORKER]


def test_a_proposal_that_somebody_else_has_done_is_no_longer_decided_here(
    house: TopicHouse, seat: Terminal
) -> None:
    with house.member("ops", BOT) as bot, house.member("ops", WORKER) as worker:
        house.run("caps", "ops", WORKER, "--profile", "full")
        proposal = bot.propose("sweep", {"n": 1}, BOT)
        seat.until("sweep")
        look(seat, '"n": 1')
        params = {"name": "sweep", "arguments": {"n": 1}}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        worker.say("mcp/request:tools/call:sweep", request, to=[BOT], correlation_id=proposal)
        seat.until(" approves [1]")
        seat.until("Enter says it to all")


def test_an_interruption_leaves_the_terminal_as_it_was(seat: Terminal) -> None:
    seat.process.send_signal(signal.SIGINT)
    assert seat.end() == 130
    assert "\x1b[?25h" in seat.seen
    assert "\x1b[?2004l" in seat.seen
