"""`comity topics`: topics shown and changed, joined by a program and at a terminal."""

import contextlib
import json
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.program import SECONDS, Desk, Terminal
from tests.cli.topic_gateway import (
    ANA,
    BOT,
    NOBODY_THERE,
    WORKER,
    Piped,
    TopicHouse,
    comity,
    topic_house,
)
from tests.support.cases import loop_over

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def house() -> Generator[TopicHouse]:
    with topic_house() as house:
        yield house


def test_topics_are_listed_while_somebody_is_in_them(house: TopicHouse) -> None:
    assert "comity topics join NAME" in house.run().out
    with house.member("ops", ANA), house.member("ops", BOT):
        listed = house.run()
        assert listed.lines[-1].split() == ["ops", "2"]
        assert house.run("list", "-o", "json").json == {
            "topics": [{"topic": "ops", "members": 2}],
            "total": 1,
        }


@pytest.mark.requirement("MCPX-10.1-state")
def test_a_topic_is_shown_with_what_each_member_may_send(house: TopicHouse) -> None:
    with house.member("ops", ANA), house.member("ops", BOT, "&mode=directed"):
        shown = house.run("show", "ops")
        (row,) = [line for line in shown.lines if line.startswith(BOT)]
        assert "directed" in row
        assert row.endswith("mcp/proposal:*, mcp/response:*, chat")
        found = house.run("show", "ops", "-o", "json").json
        assert [each["participantId"] for each in found["participants"]] == [ANA, BOT]


def test_a_topic_in_which_nobody_is_cannot_be_shown(house: TopicHouse) -> None:
    ran = house.run("show", "empty")
    assert ran.status == 5
    assert "comity topics" in ran.err


@pytest.mark.requirement("MCPX-11.3-admin", "MCPX-5.1-dynamic")
def test_a_capability_is_given_and_taken_and_its_member_is_told_at_once(house: TopicHouse) -> None:
    with house.member("deploys", BOT) as bot:
        added = house.run("capabilities", "set", "deploys", BOT, "--add", "mcp/request:tools/*")
        assert added.status == 0, added.err
        (row,) = [line for line in added.lines if "mcp/request:tools/*" in line]
        assert row.split() == ["no", "yes", "mcp/request:tools/*"]
        told = bot.until("system/welcome")["payload"]["you"]["capabilities"]
        assert "mcp/request:tools/*" in told
        taken = house.run(
            "capabilities", "set", "deploys", BOT, "--remove", "mcp/request:tools/*", "-o", "json"
        )
        assert (taken.status, taken.json["topic"]) == (0, "deploys")
        assert "mcp/request:tools/*" in taken.json["oldCapabilities"]
        assert "mcp/request:tools/*" not in taken.json["newCapabilities"]
        told = bot.until("system/welcome")["payload"]["you"]["capabilities"]
        assert told == bot.capabilities


@pytest.mark.requirement("MCPX-4.1-p-full", "MCPX-4.1-p-response")
def test_a_profile_stands_for_exactly_what_it_names(house: TopicHouse) -> None:
    full = house.run("capabilities", "set", "closed", WORKER, "--profile", "full", "-o", "json")
    assert set(full.json["newCapabilities"]) == {"mcp/*", "chat"}
    respond = house.run(
        "capabilities", "set", "closed", WORKER, "--profile", "respond", "--add", "x/y"
    )
    assert respond.status == 0, respond.err
    now = house.run("capabilities", "get", "closed", WORKER, "-o", "json").json
    assert set(now["newCapabilities"]) == {"mcp/response:*", "chat", "x/y"}
    assert now["oldCapabilities"] == now["newCapabilities"]


def test_a_wider_profile_gives_back_what_a_narrower_one_took(house: TopicHouse) -> None:
    house.run("capabilities", "set", "ladder", BOT, "--profile", "respond")
    with house.member("ladder", BOT) as bot:
        assert set(bot.capabilities) == {"mcp/response:*", "chat"}
        raised = house.run("capabilities", "set", "ladder", BOT, "--profile", "full")
        assert (raised.status, raised.err) == (0, "")
        while "mcp/*" not in bot.until("system/welcome")["payload"]["you"]["capabilities"]:
            pass
        id = bot.propose("x", {}, ANA)
        assert bot.until("mcp/proposal")["id"] == id
        lowered = house.run(
            "capabilities", "set", "ladder", BOT, "--profile", "propose", "-o", "json"
        ).json
        assert set(lowered["newCapabilities"]) == {"mcp/proposal:*", "mcp/response:*", "chat"}


def test_a_change_that_something_else_stands_against_is_told_so(house: TopicHouse) -> None:
    house.run("capabilities", "set", "*", WORKER, "--remove", "chat")
    ran = house.run("capabilities", "set", "quiet", WORKER, "--add", "chat")
    house.run("capabilities", "set", "*", WORKER, "--add", "chat")
    assert ran.status == 1
    assert "it may still not send chat" in ran.err
    assert f"comity grants list --principal {WORKER}" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("capabilities", "set", "ops", BOT, "--add", "two words"), "is no capability"),
        (("capabilities", "set", "a topic", BOT, "--add", "chat"), "name of a topic"),
        (
            ("capabilities", "set", "ops", BOT, "--add", "chat", "--remove", "chat"),
            "both added and removed",
        ),
        (("capabilities", "set", "ops", BOT, "--profile", "king"), "'king' is not one of"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    house: TopicHouse, words: tuple[str, ...], said: str
) -> None:
    ran = house.run(*words)
    assert (ran.status, said in ran.err) == (2, True)


@pytest.mark.parametrize("words", [("list",), ("show", "ops"), ("capabilities", "get", "ops", BOT)])
def test_who_may_not_ask_is_told_what_is_missing(house: TopicHouse, words: tuple[str, ...]) -> None:
    refused = house.run(*words, by=BOT)
    assert (refused.status, "admin/" in refused.err) == (4, True)
    unknown = house.run(*words, COMITY_KEY="")
    assert (unknown.status, "COMITY_KEY" in unknown.err) == (4, True)


@loop_over("words", [("list",), ("show", "ops"), ("capabilities", "get", "ops", BOT)])
def test_where_no_gateway_runs_it_is_said_how_to_start_one(words: tuple[str, ...]) -> None:
    ran = comity("topics", *words, **NOBODY_THERE)
    assert ran.status == 3
    assert "comity serve" in ran.err
    if words[0] == "caps":
        assert f"comity grants create {BOT} 'ops/CAP' --verb topic/send" in ran.err


@pytest.mark.requirement("MCPX-3.2.1-fulfil", "MCPX-3.2.1-corr")
def test_lines_go_out_and_in_and_a_proposal_is_approved(house: TopicHouse) -> None:
    with house.member("ops", BOT) as bot, house.member("ops", WORKER) as worker:
        with Piped(house, "ops") as seat:
            assert f"You are {ANA} in ops. Here: {BOT}, {WORKER}" in seat.until("You are")
            proposal = bot.propose("restart", {"service": "web"}, WORKER)
            bot.chat("good morning\nall")
            seat.until("[1] agent:bot proposes to agent:worker: restart")
            assert seat.until("good morning").endswith(f" {BOT}: good morning")
            assert seat.until("all") == "         all"
            seat.type("well then", "/to bot for you alone", "/approve 1")
            seat.until('"service": "web"')
            request = worker.until("mcp/request:tools/call:restart")
            assert (request["from"], request["to"]) == (ANA, [WORKER])
            assert request["correlation_id"] == proposal
            worker.answer(request, "restarted", BOT)
            seat.until("you approve [1]")
            assert seat.until("agent:worker answers you, agent:bot").endswith(": restarted")
            assert seat.end()[0] == 0
        assert bot.until("chat", to=[BOT])["payload"]["text"] == "for you alone"
        assert {"text": "well then", "format": "plain"} in [each["payload"] for each in bot.heard]


def test_a_proposal_is_declined_in_words_where_the_topic_knows_no_other_way(
    house: TopicHouse,
) -> None:
    with house.member("ops", BOT) as bot, Piped(house, "ops") as seat:
        seat.until("You may send")
        proposal = bot.propose("erase", {"path": "/srv"}, ANA)
        seat.until("[1]")
        seat.type("/approve 1", "/decline 1 not today", "/approve 1")
        told = bot.until("chat")
        assert (told["to"], told["correlation_id"]) == ([BOT], proposal)
        assert told["payload"]["text"].endswith(": not today")
        status, out, err = seat.end()
        assert "you decline [1]: not today" in out
        assert "[1]: it is addressed to you, and you have no tools here" in err
        assert "[1] is not pending any more" in err
        assert status == 1


def test_a_proposal_is_rejected_where_the_topic_knows_that(house: TopicHouse) -> None:
    with house.member("later", BOT) as bot, Piped(house, "later") as seat:
        seat.until("You may send")
        proposal = bot.propose("erase", {"path": "/srv"}, ANA)
        seat.until("[1]")
        seat.type("/decline 1 not today")
        told = bot.until("mcp/reject")
        assert (told["to"], told["correlation_id"]) == ([BOT], proposal)
        assert told["payload"] == {"reason": "not today"}
        status, _, err = seat.end()
        assert (status, err) == (0, "")


def test_what_one_may_not_do_is_proposed_or_told_with_the_way_to_it(house: TopicHouse) -> None:
    with house.member("dev", WORKER) as worker, Piped(house, "dev", by=BOT) as seat:
        seat.until("You may send")
        proposal = worker.propose("build", {"n": 1}, ANA)
        seat.until("[1]")
        seat.type("/approve 1", '/call worker test {"all": true}', "/propose worker resources/list")
        made = worker.until("mcp/proposal", **{"from": BOT})
        assert made["payload"]["params"] == {"name": "test", "arguments": {"all": True}}
        assert worker.until("mcp/proposal")["kind"] == "mcp/proposal:resources/list"
        assert seat.until("[2] you propose to agent:worker: test")
        seat.type("/quit")
        status, out, err = seat.end()
        way = f"comity topics capabilities set dev {BOT} --add mcp/request:tools/call:build"
        assert (status, way in err) == (1, True)
        assert proposal not in out


def test_programs_read_each_envelope_as_a_line(house: TopicHouse) -> None:
    with house.member("ops", BOT) as bot, Piped(house, "ops", "-o", "json") as seat:
        assert json.loads(seat.until("system/welcome"))["payload"]["you"]["id"] == ANA
        id = bot.chat("gr\u00fc\u00df\u202egott \x1b[2J")
        line = seat.until(id)
        assert line.isascii()
        assert json.loads(line)["payload"] == {"text": "gr\u00fc\u00df\u202egott \x1b[2J"}
        seat.type("so be it")
        assert json.loads(seat.until("so be it"))["from"] == ANA
        status, out, err = seat.end()
        assert (status, err) == (0, "")
        assert all(json.loads(each) for each in out.splitlines())


def test_a_reader_who_goes_away_ends_it_without_a_word(house: TopicHouse) -> None:
    with house.member("ops", BOT) as bot, Piped(house, "ops", "-o", "json") as seat:
        seat.until("system/welcome")
        assert seat.process.stdout is not None
        seat.process.stdout.close()
        bot.chat("nobody reads this")
        assert seat.process.wait(SECONDS) == 141
        assert seat.process.stderr is not None
        assert seat.process.stderr.read() == b""


def test_where_nobody_shows_a_key_one_is_who_one_says() -> None:
    with topic_house(identity_mode="local") as house:
        with Piped(house, "ops", "--as", "bea", "--mode", "directed") as seat:
            assert "You are local:bea in ops. Here: no other members" in seat.until("You are")
            seat.type("/who", "/help", "/proposals", "//slash", "", "/dance")
            seat.until("you  ")
            seat.until("/approve N [PRINCIPAL]")
            assert seat.until("slash").endswith("you: /slash")
            status, _, err = seat.end()
        assert status == 1
        assert "no pending proposals" in err
        assert "there is no /dance" in err


@pytest.mark.parametrize(
    ("topic", "env", "status", "said"),
    [
        ("ops", {"COMITY_KEY": ""}, 4, "put a key into COMITY_KEY"),
        ("ops", {"COMITY_KEY": "wrong"}, 4, "does not accept this key"),
        ("closed", {}, 2, f"comity topics capabilities set closed {BOT} --add chat"),
        ("secret", {}, 2, "there is no topic 'secret' that you can join"),
        ("o/p", {}, 2, "is no topic"),
        ("ops", NOBODY_THERE, 3, "comity serve"),
    ],
)
def test_who_is_not_let_in_is_told_what_to_do(
    house: TopicHouse, topic: str, env: dict[str, str], status: int, said: str
) -> None:
    ran = house.run("join", topic, by=BOT, **env)
    assert (ran.status, said in ran.err) == (status, True), ran.err


def test_an_alias_is_for_those_who_show_no_key(house: TopicHouse) -> None:
    ran = house.run("join", "ops", "--as", "bea")
    assert (ran.status, "your credentials name you" in ran.err) == (2, True), ran.err
    assert comity("topics", "join", "--help").status == 0


def test_who_is_replaced_or_put_out_is_told_so(house: TopicHouse) -> None:
    with Piped(house, "ops", "--stay") as seat:
        seat.until("You may send")
        with house.member("ops", ANA):
            status, _, err = seat.end()
    assert (status, "newer connection" in err) == (2, True)


LOOKING = "approve exactly this"


@pytest.fixture
def seat(house: TopicHouse, tmp_path: Path) -> Generator[Terminal]:
    """Ana at her terminal, in the topic."""
    desk = Desk(tmp_path, **house.shown(ANA))
    with Terminal(desk, "topics", "join", "ops") as terminal:
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
        seat.until(" left")
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
        look(seat, "any member")
        press(seat, "a", "/approve 1 ")
        seat.until("has no target")
        seat.type(f"\x15/approve 1 {WORKER[:9]}\t\r")
        seat.until(LOOKING)
        press(seat, "a", " approve [1]")
        assert worker.until("mcp/request")["to"] == [WORKER]


def test_a_proposal_that_somebody_else_has_done_is_no_longer_decided_here(
    house: TopicHouse, seat: Terminal
) -> None:
    with house.member("ops", BOT) as bot, house.member("ops", WORKER) as worker:
        house.run("capabilities", "set", "ops", WORKER, "--profile", "full")
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
