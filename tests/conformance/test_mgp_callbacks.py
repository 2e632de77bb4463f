"""What a server asks of people amid a call, answered through the inbox. (MGP §13.4, D-24, D-28)"""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from tests.conformance.questioned import (
    MGP,
    PLAIN,
    answer,
    asks,
    callback,
    calling,
    journaled,
    questioned,
    told,
    until_asked,
    until_state,
)
from tests.conformance.ways import Frame, House

ENDED = ("withdrawn", "expired", "denied", "cancelled", "consumed")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with questioned(tmp_path_factory.mktemp("questioned")) as house:
        yield house


@pytest.mark.requirement("MGP-13.4-confirmation", "MGP-13.4-respond", "MGP-2.2-ext-bidirectional")
@pytest.mark.parametrize(
    ("verdict", "content", "response"),
    [
        ("accept", {}, "confirm"),
        ("accept", {"choice": "confirm"}, "confirm"),
        ("accept", {"choice": "cancel"}, "cancel"),
        ("decline", {}, "cancel"),
        ("cancel", {}, "cancel"),
    ],
)
async def test_a_confirmation_is_what_a_person_says(
    house: House, verdict: str, content: Frame, response: str
) -> None:
    async with house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, callbacks=[callback("confirmation")])
        (ask,) = await until_asked(house, "confirm")
        assert ask["options"] == ["confirm", "cancel"]
        assert "\u201cDelete 15 files?\u201d" in ask["summary"]
        assert "Server near asks" in ask["summary"]
        assert ask["about"]["asked_by"] == "server:near"
        assert (await answer(house, ask["id"], verdict, content=content))[0] == 200
        assert told(await calls) == [("cb-1", response)]


@pytest.mark.requirement("MGP-13.4-respond", "MGP-13.4-confirmation")
@pytest.mark.parametrize("server", ["near", "far"])
async def test_servers_of_both_transports_are_answered_by_a_request(
    house: House, server: str
) -> None:
    async with house.among_all(server).talk(MGP) as talk:
        calls = calling(talk, callbacks=[callback("confirmation")])
        (ask,) = await until_asked(house, "confirm")
        await answer(house, ask["id"], "accept")
        assert told(await calls) == [("cb-1", "confirm")]
        frames = (await talk.call("seen")).result["structuredContent"]["frames"]
    (heard,) = [each for each in frames if each["method"] == "mgp/callback/respond"][-1:]
    said = heard["params"]
    assert (said["callback_id"], said["response"]) == ("cb-1", "confirm")
    assert "id" in heard


@pytest.mark.requirement("MGP-13.4-selection")
async def test_a_selection_takes_one_of_its_options_and_nothing_else(house: House) -> None:
    options = ["staging", "production", "approve"]
    async with house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, callbacks=[callback("selection", options=options)])
        (ask,) = await until_asked(house, "select")
        for content in ({}, {"choice": "elsewhere"}, {"choice": "Staging"}, {"text": "staging"}):
            status, refused = await answer(house, ask["id"], "accept", content=content)
            assert (status, "choose one of" in refused["error"]["message"]) == (400, True)
        assert (await asks(house))[0]["state"] == "pending"
        await answer(house, ask["id"], "accept", content={"choice": "staging"})
        assert told(await calls) == [("cb-1", "staging")]


@pytest.mark.requirement("MGP-13.4-input")
async def test_what_is_filled_in_reaches_the_server_and_nothing_else(house: House) -> None:
    secret = "correct-horse-battery"
    async with house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, callbacks=[callback("input")])
        (ask,) = await until_asked(house, "input")
        assert (await answer(house, ask["id"], "accept"))[0] == 400
        assert (await answer(house, ask["id"], "accept", content={"text": "x" * 20_000}))[0] == 400
        _, answered = await answer(house, ask["id"], "accept", content={"text": secret})
        assert told(await calls) == [("cb-1", secret)]
    entries = await journaled(house, ask["id"])
    marks = [each["details"].get("content", "") for each in entries if "details" in each]
    assert any(str(mark).startswith("hmac-sha256:") for mark in marks), entries
    shown = [answered, await until_state(house, ask["id"], "consumed"), entries]
    assert secret not in json.dumps(shown)


@pytest.mark.requirement("MGP-13.4-notification")
async def test_a_notice_is_shown_and_written_down_and_wants_no_answer(house: House) -> None:
    notice = callback("notification", "note", message="Half is done.")
    async with house.among_all("near").talk(PLAIN) as talk:
        exchange = await talk.call("back", {"callbacks": [notice], "answers": 0})
        assert told(exchange) == []
        (ask,) = await until_asked(house, "notice")
        assert "Half is done." in ask["summary"]
        status, refused = await answer(house, ask["id"], "accept")
        assert (status, refused["error"]["message"]) == (400, "a notification needs no answer")
        frames = (await talk.call("seen")).result["structuredContent"]["frames"]
    responded = [each["params"]["callback_id"] for each in frames if "callback" in each["method"]]
    assert "note" not in responded
    assert any("Half is done." in json.dumps(each) for each in await journaled(house, ask["id"]))


@pytest.mark.requirement("MGP-13.4-callback-timeout")
async def test_nobody_s_answer_is_none_once_the_time_is_over(house: House) -> None:
    """And not before: a server that wants it sooner than in a second waits for one."""
    asked = [
        callback("confirmation", "c", timeout_ms=1),
        callback("input", "i", timeout_ms=1000),
        callback("selection", "s", options=["a"], timeout_ms=1000),
    ]
    began = time.monotonic()
    async with house.among_all("near").talk(PLAIN) as talk:
        exchange = await talk.call("back", {"callbacks": asked})
    assert time.monotonic() - began >= 0.9
    assert sorted(told(exchange)) == [("c", "cancel"), ("i", None), ("s", None)]
    expired = await asks(house, state="expired")
    assert {"confirm", "input", "select"} <= {each["kind"] for each in expired}


@pytest.mark.requirement("MGP-13.4-respond")
async def test_a_repeated_question_is_asked_once_and_answered_again(house: House) -> None:
    """Twice before there is an answer, and once after it. (D-28)"""
    one = callback("confirmation")
    async with house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, callbacks=[one, one], answers=1, again=2)
        (ask,) = await until_asked(house, "confirm")
        await answer(house, ask["id"], "accept")
        assert told(await calls) == [("cb-1", "confirm")] * 3
    used = [each for each in await asks(house, state="consumed") if each["id"] >= ask["id"]]
    assert [each["id"] for each in used] == [ask["id"]]


async def test_a_call_that_ends_withdraws_what_was_asked_amid_it(house: House) -> None:
    """Here its client withdraws it; nobody can answer any more."""
    async with house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, callbacks=[callback("confirmation")])
        (ask,) = await until_asked(house, "confirm")
        calls.cancel()
        await asyncio.wait([calls])
    ended = await until_state(house, ask["id"], *ENDED)
    assert ended["state"] == "withdrawn"
    status, _ = await answer(house, ask["id"], "accept")
    assert status == 400


async def test_a_server_that_answers_without_waiting_has_its_question_withdrawn(
    house: House,
) -> None:
    async with house.among_all("near").talk(PLAIN) as talk:
        asked = {"callbacks": [callback("confirmation", timeout_ms=3_600_000)], "answers": 0}
        before = await asks(house, state="withdrawn")
        assert told(await talk.call("back", asked)) == []
    await until_asked(house, "confirm", len(before) + 1, state="withdrawn")


@pytest.mark.requirement("MGP-13.4-nonblocking")
@pytest.mark.parametrize("server", ["near", "far"])
async def test_while_a_question_waits_its_client_and_others_go_on_with_the_server(
    house: House, server: str
) -> None:
    way = house.among_all(server)
    async with way.talk(MGP) as asked, way.talk(MGP) as other:
        waiting = calling(asked, callbacks=[callback("confirmation")])
        (ask,) = await until_asked(house, "confirm")
        for talk in (asked, other):
            went_on = await talk.call("wait", {"seconds": 0})
            assert went_on.result["structuredContent"] == {"waited": True}
        assert not waiting.done()
        await answer(house, ask["id"], "accept")
        assert told(await waiting) == [("cb-1", "confirm")]


async def test_the_deadline_of_a_call_stands_still_while_somebody_is_asked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The call may take two seconds; the person takes three. (D-94)"""
    folder = tmp_path_factory.mktemp("patient")
    with questioned(folder, limits='[limits]\ncall_idle_timeout = "2s"') as house:
        async with house.among_all("near").talk(PLAIN) as talk:
            calls = calling(talk, callbacks=[callback("confirmation")])
            (ask,) = await until_asked(house, "confirm")
            done, _ = await asyncio.wait([calls], timeout=3.5)
            assert not done
            await answer(house, ask["id"], "accept")
            assert told(await calls) == [("cb-1", "confirm")]


# Servers that mean no good.

HOSTILE: list[Frame] = [
    callback("approval", "odd"),
    callback("confirmation", "odd", options=["x"] * 1000),
    callback("confirmation", "odd", options=["x" * 50_000]),
    callback("confirmation", "odd", options=["confirm", "\x1b[2Jcancel"]),
    callback("confirmation", "odd", options=["confirm", "\uff43onfirm"]),
    callback("confirmation", "odd", message="x" * 10_000),
    callback("confirmation", "odd", message=""),
    callback("confirmation", "odd", timeout_ms="soon"),
    callback("selection", "odd"),
    callback("confirmation", "odd", request_id=9_999),
    callback("confirmation", "odd", request_id="1"),
    callback("confirmation", "odd", request_id=None),
]


@pytest.mark.parametrize("server", ["near", "far"])
@pytest.mark.parametrize("bad", HOSTILE)
async def test_what_cannot_be_asked_is_cancelled_and_nobody_is_bothered(
    house: House, server: str, bad: Frame
) -> None:
    before = len(await asks(house, state="all"))
    async with house.among_all(server).talk(MGP) as talk:
        assert told(await talk.call("back", {"callbacks": [bad]})) == [("odd", "cancel")]
    assert len(await asks(house, state="all")) == before


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "confirmation", "message": "no name"},
        callback("confirmation", "x" * 1000),
        callback("confirmation", "a\x00b"),
        callback("confirmation", "huge", options=["x" * 100_000]),
        {"callback_id": ["a"], "type": "confirmation", "message": "?"},
    ],
)
async def test_what_has_no_name_to_be_answered_by_is_passed_over(house: House, bad: Frame) -> None:
    async with house.among_all("near").talk(PLAIN) as talk:
        exchange = await talk.call("back", {"callbacks": [bad], "answers": 0})
        assert told(exchange) == []
        assert told(await talk.call("back", {"callbacks": [HOSTILE[0]]})) == [("odd", "cancel")]


async def test_a_flood_is_asked_in_part_and_cancelled_for_the_rest(house: House) -> None:
    flood = [callback("confirmation", f"cb-{number}") for number in range(18)]
    async with house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, callbacks=flood)
        found = await until_asked(house, "confirm", 16)
        assert len(found) == 16
        for each in found:
            await answer(house, each["id"], "accept")
        answers = [said for _, said in told(await calls)]
    assert (answers.count("confirm"), answers.count("cancel")) == (16, 2)


async def test_one_name_for_two_questions_is_asked_about_the_first(house: House) -> None:
    other = callback("confirmation", message="Delete everything?")
    async with house.among_all("near").talk(PLAIN) as talk:
        calls = calling(talk, callbacks=[callback("confirmation"), other], answers=1)
        (ask,) = await until_asked(house, "confirm")
        assert "15 files" in ask["summary"]
        await answer(house, ask["id"], "accept")
        assert told(await calls) == [("cb-1", "confirm")]


async def test_a_server_s_words_are_shown_as_its_own(house: House) -> None:
    """Whatever it says of us, it stays between its marks and on its line."""
    words = "Done.\u201d Comity: approved.\n\x1b[2J\u202eoops"
    options = ["Comity approves", "cancel"]
    async with house.among_all("near").talk(PLAIN) as talk:
        asked = callback("confirmation", message=words, options=options)
        calls = calling(talk, callbacks=[asked])
        (ask,) = await until_asked(house, "confirm")
        assert ask["summary"].count("\u201d") == 1
        assert not {"\x1b", "\u202e", "\n"} & set(ask["summary"])
        # Without a choice, none of its options is taken for a yes.
        assert (await answer(house, ask["id"], "accept"))[0] == 400
        assert (await answer(house, ask["id"], "accept", remember=True))[0] == 400
        await answer(house, ask["id"], "decline")
        assert told(await calls) == [("cb-1", "cancel")]


async def test_a_server_that_did_not_agree_on_callbacks_is_not_heard(house: House) -> None:
    before = len(await asks(house, state="all"))
    async with house.among_all("plain").talk(PLAIN) as talk:
        asked = {"callbacks": [callback("confirmation")], "answers": 0}
        exchange = await talk.call("back", asked)
        assert told(exchange) == []
        assert not exchange.said("notifications/mgp.callback.request")
    assert len(await asks(house, state="all")) == before


@pytest.mark.requirement("MGP-13.4-respond")
async def test_a_client_that_negotiated_for_itself_is_called_back_itself(house: House) -> None:
    """At the server's own door, by the id that it gave its call itself. (D-24)"""
    async with house.own("near").talk(MGP) as talk:
        asked = {"callbacks": [callback("confirmation")], "answers": 0}
        exchange = await talk.call("back", asked, named="own-7")
        (said,) = exchange.said("notifications/mgp.callback.request")
        assert said["params"] == {**callback("confirmation"), "request_id": "own-7"}
    assert not [each for each in await asks(house) if each["kind"] == "confirm"]
