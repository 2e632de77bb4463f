"""`comity topic`: who is where, and what somebody may send, shown and changed at a gateway."""

from collections.abc import Generator

import pytest

from tests.cli.topic_gateway import ANA, BOT, NOBODY_THERE, WORKER, TopicHouse, comity, topic_house


@pytest.fixture(scope="module")
def house() -> Generator[TopicHouse]:
    with topic_house() as house:
        yield house


def test_topics_are_listed_while_somebody_is_in_them(house: TopicHouse) -> None:
    assert "comity topic join NAME" in house.run().out
    with house.member("ops", ANA), house.member("ops", BOT):
        listed = house.run()
        assert listed.lines[-1].split() == ["ops", "2"]
        assert house.run("list", "--json").json == {
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
        found = house.run("show", "ops", "--json").json
        assert [each["participantId"] for each in found["participants"]] == [ANA, BOT]


def test_a_topic_in_which_nobody_is_cannot_be_shown(house: TopicHouse) -> None:
    ran = house.run("show", "empty")
    assert ran.status == 2
    assert "comity topic list" in ran.err


@pytest.mark.requirement("MCPX-11.3-admin", "MCPX-5.1-dynamic")
def test_a_capability_is_given_and_taken_and_its_member_is_told_at_once(house: TopicHouse) -> None:
    with house.member("deploys", BOT) as bot:
        added = house.run("caps", "deploys", BOT, "--add", "mcp/request:tools/*")
        assert added.status == 0, added.err
        (row,) = [line for line in added.lines if "mcp/request:tools/*" in line]
        assert row.split() == ["no", "yes", "mcp/request:tools/*"]
        told = bot.until("system/welcome")["payload"]["you"]["capabilities"]
        assert "mcp/request:tools/*" in told
        taken = house.run("caps", "deploys", BOT, "--remove", "mcp/request:tools/*", "--json")
        assert (taken.status, taken.json["topic"]) == (0, "deploys")
        assert "mcp/request:tools/*" in taken.json["oldCapabilities"]
        assert "mcp/request:tools/*" not in taken.json["newCapabilities"]
        told = bot.until("system/welcome")["payload"]["you"]["capabilities"]
        assert told == bot.capabilities


@pytest.mark.requirement("MCPX-4.1-p-full", "MCPX-4.1-p-response")
def test_a_profile_stands_for_exactly_what_it_names(house: TopicHouse) -> None:
    full = house.run("caps", "closed", WORKER, "--profile", "full", "--json")
    assert set(full.json["newCapabilities"]) == {"mcp/*", "chat"}
    respond = house.run("caps", "closed", WORKER, "--profile", "respond", "--add", "x/y")
    assert respond.status == 0, respond.err
    now = house.run("caps", "closed", WORKER, "--json").json
    assert set(now["newCapabilities"]) == {"mcp/response:*", "chat", "x/y"}
    assert now["oldCapabilities"] == now["newCapabilities"]


def test_a_wider_profile_gives_back_what_a_narrower_one_took(house: TopicHouse) -> None:
    house.run("caps", "ladder", BOT, "--profile", "respond")
    with house.member("ladder", BOT) as bot:
        assert set(bot.capabilities) == {"mcp/response:*", "chat"}
        raised = house.run("caps", "ladder", BOT, "--profile", "full")
        assert (raised.status, raised.err) == (0, "")
        while "mcp/*" not in bot.until("system/welcome")["payload"]["you"]["capabilities"]:
            pass
        id = bot.propose("x", {}, ANA)
        assert bot.until("mcp/proposal")["id"] == id
        lowered = house.run("caps", "ladder", BOT, "--profile", "propose", "--json").json
        assert set(lowered["newCapabilities"]) == {"mcp/proposal:*", "mcp/response:*", "chat"}


def test_a_change_that_something_else_stands_against_is_told_so(house: TopicHouse) -> None:
    house.run("caps", "*", WORKER, "--remove", "chat")
    ran = house.run("caps", "quiet", WORKER, "--add", "chat")
    house.run("caps", "*", WORKER, "--add", "chat")
    assert ran.status == 1
    assert "it may still not send chat" in ran.err
    assert f"comity grants --subject {WORKER}" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("caps", "ops", BOT, "--add", "two words"), "is no capability"),
        (("caps", "a topic", BOT, "--add", "chat"), "name of a topic"),
        (("caps", "ops", BOT, "--add", "chat", "--remove", "chat"), "both added and removed"),
        (("caps", "ops", BOT, "--profile", "king"), "'king' is not one of"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    house: TopicHouse, words: tuple[str, ...], said: str
) -> None:
    ran = house.run(*words)
    assert (ran.status, said in ran.err) == (2, True)


@pytest.mark.parametrize("words", [("list",), ("show", "ops"), ("caps", "ops", BOT)])
def test_who_may_not_ask_is_told_what_is_missing(house: TopicHouse, words: tuple[str, ...]) -> None:
    refused = house.run(*words, by=BOT)
    assert (refused.status, "admin/" in refused.err) == (2, True)
    unknown = house.run(*words, COMITY_KEY="")
    assert (unknown.status, "COMITY_KEY" in unknown.err) == (2, True)


@pytest.mark.parametrize("words", [("list",), ("show", "ops"), ("caps", "ops", BOT)])
def test_where_no_gateway_runs_it_is_said_how_to_start_one(words: tuple[str, ...]) -> None:
    ran = comity("topic", *words, **NOBODY_THERE)
    assert ran.status == 3
    assert "comity serve" in ran.err
    if words[0] == "caps":
        assert f"comity grants add {BOT} 'ops/CAP' --verb topic/send" in ran.err
