"""`comity topic join` without a terminal: lines out and in, and why somebody is not let in."""

import json
from collections.abc import Generator

import pytest

from tests.cli.program import SECONDS
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

# Each seat is a program of its own, on a machine that may have much else to do.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def house() -> Generator[TopicHouse]:
    with topic_house() as house:
        yield house


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
        assert "[1]: it is for you to do, and you have no tools here" in err
        assert "[1] waits no longer" in err
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
        way = f"comity topic caps dev {BOT} --add mcp/request:tools/call:build"
        assert (status, way in err) == (1, True)
        assert proposal not in out


def test_programs_read_each_envelope_as_a_line(house: TopicHouse) -> None:
    with house.member("ops", BOT) as bot, Piped(house, "ops", "--json") as seat:
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
    with house.member("ops", BOT) as bot, Piped(house, "ops", "--json") as seat:
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
            assert "You are local:bea in ops. Here: nobody else" in seat.until("You are")
            seat.type("/who", "/help", "/proposals", "//slash", "", "/dance")
            seat.until("you  ")
            seat.until("/approve N [PARTY]")
            assert seat.until("slash").endswith("you: /slash")
            status, _, err = seat.end()
        assert status == 1
        assert "nothing waits" in err
        assert "there is no /dance" in err


@pytest.mark.parametrize(
    ("topic", "env", "status", "said"),
    [
        ("ops", {"COMITY_KEY": ""}, 2, "put a key into COMITY_KEY"),
        ("ops", {"COMITY_KEY": "wrong"}, 2, "does not take this key"),
        ("closed", {}, 2, f"comity topic caps closed {BOT} --add chat"),
        ("secret", {}, 2, "there is no topic 'secret' for you"),
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
    assert (ran.status, "credentials say who you are" in ran.err) == (2, True), ran.err
    assert comity("topic", "join", "--help").status == 0


def test_who_is_replaced_or_put_out_is_told_so(house: TopicHouse) -> None:
    with Piped(house, "ops", "--stay") as seat:
        seat.until("You may send")
        with house.member("ops", ANA):
            status, _, err = seat.end()
    assert (status, "newer connection" in err) == (2, True)
