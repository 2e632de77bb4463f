"""Turns: how far they go, what of the past fits, which words are shown while they come."""

import asyncio
import re
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from comity.inference.messages import ContentBlock, text_of, to_text_content
from comity.inference.model import ConversationStep, ReplyChunk, ToolResult, ToolUse
from comity.live.hooks.model import InjectedContext
from comity.live.hooks.service import TurnDepth
from comity.live.settings import TurnSettings
from comity.live.turns.model import (
    StoredTurn,
    how_many_fit,
    select_presentable,
    tokens_for_history,
    tool_names,
    truncate_content,
)
from comity.live.turns.runner import (
    CONTINUE_MESSAGE,
    MOST_FOLLOWED,
    NOTHING_SAID,
    TurnOutput,
    TurnOutputs,
    build_user_step,
    history_steps,
    output_text,
    repair_steps,
    step_tokens,
    with_delivered_text,
)
from tests.pace import here

SECRET = "sk-" + "live0123456789abcdefABCDEF"


def hide(text: str) -> str:
    return text.replace(SECRET, "[hidden]")


def test_of_the_past_the_last_turns_are_given_whole() -> None:
    assert how_many_fit([5, 5, 5], 10) == 2
    assert how_many_fit([5, 50, 1], 10) == 1
    assert how_many_fit([11], 10) == 0
    assert how_many_fit([], 10) == 0


def test_what_must_be_there_takes_the_room_of_the_past() -> None:
    bounds = TurnSettings(max_reply_tokens=100, max_tool_tokens=100)
    assert tokens_for_history(1_000, bounds) == 800
    assert tokens_for_history(1_000, bounds, to_text_content("x" * 300)) < 800
    assert tokens_for_history(150, bounds) == 0


def test_what_is_too_long_is_cut_and_says_so() -> None:
    picture = ContentBlock("image", data="x" * 50, mime="image/png")
    assert truncate_content((*to_text_content("short"), picture), 100) == (
        *to_text_content("short"),
        picture,
    )
    found = truncate_content((*to_text_content("x" * 60), picture, *to_text_content("after")), 100)
    assert "left out" in text_of(found)
    assert picture not in found
    assert text_of(truncate_content(to_text_content("y" * 500), 100)).count("y") == 100


@given(st.lists(st.text(max_size=100), unique=True, max_size=30))
def test_every_tool_has_a_name_that_a_model_takes_and_no_two_the_same(names: list[str]) -> None:
    found = tool_names(names)
    assert list(found.values()) == names
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in found)


def test_tools_keep_their_names_where_they_can() -> None:
    found = tool_names(["a.b", "a_b", "x" * 70, "x" * 71])
    assert list(found) == ["a_b", "a_b_2", "x" * 64, "x" * 62 + "_2"]


@given(st.lists(st.text(max_size=40), max_size=30), st.integers(0, 20))
def test_what_was_shown_is_a_beginning_of_what_goes_out(parts: list[str], where: int) -> None:
    parts.insert(min(where, len(parts)), f" {SECRET} ")
    text = shown = ""
    for part in parts:
        text += part
        shown += select_presentable(text, shown, hide)
    assert hide(text).startswith(shown)
    assert SECRET not in shown


@given(st.integers(1, 30))
def test_a_secret_that_comes_letter_by_letter_is_never_shown(size: int) -> None:
    text = shown = ""
    whole = "words " * 30 + SECRET + " more words" * 30
    for start in range(0, len(whole), size):
        text += whole[start : start + size]
        shown += select_presentable(text, shown, hide)
    assert "sk-" not in shown
    assert "more words" in shown


def test_a_key_that_has_begun_is_not_shown_before_its_end() -> None:
    text = "here it is\n-----BEGIN RSA PRIVATE KEY-----\n" + "abc def\n" * 100
    assert select_presentable(text, "", hide) == "here it is\n"


def test_of_very_long_words_the_rest_waits() -> None:
    assert select_presentable("word " * 20_000, "", hide) == ""


USING = ConversationStep("assistant", to_text_content("let me"), (ToolUse("u1", "rake", {"x": 1}),))
BROUGHT = ConversationStep("user", results=(ToolResult("u1", to_text_content("raked")),))
LAST = ConversationStep("assistant", to_text_content("done"))
STEPS = (USING, BROUGHT, LAST)


def kept(number: int, steps: tuple[ConversationStep, ...] = STEPS, **errand: str) -> StoredTurn:
    now = datetime.now(UTC)
    return StoredTurn(
        f"inf_{number}", "k", "c", errand, to_text_content(f"ask {number}"), now, steps=steps
    )


def test_what_was_broken_off_is_told_as_unknown_and_what_was_not_stays() -> None:
    assert repair_steps(STEPS) == STEPS
    assert repair_steps(()) == ()
    *before, told = repair_steps((USING,))
    assert before == [USING]
    assert [(each.id, each.is_error) for each in told.results] == [("u1", True)]
    assert "unknown" in text_of(told.results[0].content)


def test_the_past_knows_what_went_out_and_no_other_words() -> None:
    assert with_delivered_text(STEPS, "let me\n\ndone") == STEPS
    changed = with_delivered_text(STEPS, "redacted")
    assert output_text(changed) == "redacted"
    assert [step.uses for step in changed] == [USING.uses, (), ()]
    assert changed[1] == BROUGHT
    assert output_text(with_delivered_text((LAST,), "")) == NOTHING_SAID


def test_of_the_past_whole_turns_are_given_the_last_ones() -> None:
    turns = [kept(3), kept(2), kept(1)]
    one = step_tokens(ConversationStep("user", to_text_content("ask 1"))) + sum(
        map(step_tokens, STEPS)
    )
    assert history_steps(turns, 0) == ()
    found = history_steps(turns, 2 * one + 5)
    assert [text_of(step.content) for step in found if step.role == "user" and step.content] == [
        "ask 2",
        "ask 3",
    ]
    assert len(found) == 8
    assert len(history_steps(turns, 10_000)) == 12


def test_who_spoke_is_said_where_there_may_be_several() -> None:
    alone = build_user_step(kept(1, origin="request", author="person:ana"), InjectedContext())
    assert text_of(alone.content) == "ask 1"
    among = build_user_step(
        kept(1, origin="channel", author='ana"> \n<context-1'), InjectedContext()
    )
    assert text_of(among.content) == "[ana__ __context-1]\nask 1"
    nothing = StoredTurn("i", "k", "c", {}, (), datetime.now(UTC))
    placed = InjectedContext((), to_text_content("before"), to_text_content("after"))
    assert build_user_step(nothing, placed).content == (
        *to_text_content("before"),
        *CONTINUE_MESSAGE,
        *to_text_content("after"),
    )


def test_a_turn_that_a_server_brings_about_meanwhile_is_one_deeper() -> None:
    echoes = TurnDepth()
    assert echoes.depth_of("a") == 0
    with echoes.awaiting(["a", "b"], 0), echoes.awaiting(["a"], 2):
        assert [echoes.depth_of(each) for each in ("a", "b", "c")] == [3, 1, 0]
    assert echoes.depth_of("a") == 0


def heard(words: TurnOutput) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    words.listeners.append(lambda index, delta: found.append((index, delta)))
    return found


async def test_pieces_are_numbered_and_make_up_the_whole() -> None:
    words = TurnOutput(hide)
    found = heard(words)
    text = "some words " * 60
    for start in range(0, len(text), 7):
        words.add_chunk(ReplyChunk(text[start : start + 7]))
    words.add_chunk(ReplyChunk("never shown", is_thinking=True))
    assert found
    words.finish(text)
    assert [index for index, _ in found] == list(range(len(found)))
    assert "".join(delta for _, delta in found) == text


async def test_what_somebody_looks_at_first_is_shown_in_the_end() -> None:
    words = TurnOutput(hide)
    found = heard(words)
    words.is_open = False
    words.add_chunk(ReplyChunk("words " * 100))
    assert found == []
    words.finish("other words")
    assert found == [(0, "other words")]


async def test_where_the_end_is_another_no_more_is_shown() -> None:
    words = TurnOutput(hide)
    found = heard(words)
    words.add_chunk(ReplyChunk("some words " * 60))
    shown = list(found)
    assert shown
    words.finish("quite other words")
    assert found == shown
    assert words.is_over


async def test_who_follows_is_woken_by_more_words_and_by_the_end() -> None:
    words = TurnOutput(hide)
    async with asyncio.timeout(here(30)):
        await words.wait_for_more(0, 0.01)
        waiting = asyncio.ensure_future(words.wait_for_more(0, 3600))
        over = asyncio.ensure_future(words.wait_until_over())
        await asyncio.sleep(0)
        words.add_chunk(ReplyChunk("some words " * 60))
        await waiting
        assert not over.done()
        words.end()
        await over
        await words.wait_for_more(10**9, 3600)


async def test_only_the_last_turns_are_followed() -> None:
    followed = TurnOutputs(hide)
    first = followed.open("first")
    assert followed.open("first") is first
    first.end()
    assert followed.open("first") is not first
    for number in range(MOST_FOLLOWED):
        followed.open(str(number))
    assert followed.get("first") is None
    assert followed.get("1") is not None
