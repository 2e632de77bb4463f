"""Turns: how far they go, what of the past fits, and which words are shown while they come."""

import re

from hypothesis import given
from hypothesis import strategies as st

from comity.rules import turns
from comity.rules.turns import Bounds, cut, how_many_fit, presentable, room_for_past, tool_names
from comity.wire.contents import Block, said, text_of

SECRET = "sk-" + "live0123456789abcdefABCDEF"


def hide(text: str) -> str:
    return text.replace(SECRET, "[hidden]")


def test_as_many_turns_may_bring_about_each_other_as_was_said() -> None:
    bounds = Bounds(depth=3)
    assert [turns.is_too_deep(depth, bounds) for depth in (0, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]


def test_of_the_past_the_last_turns_are_given_whole() -> None:
    assert how_many_fit([5, 5, 5], 10) == 2
    assert how_many_fit([5, 50, 1], 10) == 1
    assert how_many_fit([11], 10) == 0
    assert how_many_fit([], 10) == 0


def test_what_must_be_there_takes_the_room_of_the_past() -> None:
    bounds = Bounds(reply_tokens=100, tool_tokens=100)
    assert room_for_past(1_000, bounds) == 800
    assert room_for_past(1_000, bounds, said("x" * 300)) < 800
    assert room_for_past(150, bounds) == 0


def test_what_is_too_long_is_cut_and_says_so() -> None:
    picture = Block("image", data="x" * 50, mime="image/png")
    assert cut((*said("short"), picture), 100) == (*said("short"), picture)
    found = cut((*said("x" * 60), picture, *said("after")), 100)
    assert "left out" in text_of(found)
    assert picture not in found
    assert text_of(cut(said("y" * 500), 100)).count("y") == 100


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
        shown += presentable(text, shown, hide)
    assert hide(text).startswith(shown)
    assert SECRET not in shown


@given(st.integers(1, 30))
def test_a_secret_that_comes_letter_by_letter_is_never_shown(size: int) -> None:
    text = shown = ""
    whole = "words " * 30 + SECRET + " more words" * 30
    for start in range(0, len(whole), size):
        text += whole[start : start + size]
        shown += presentable(text, shown, hide)
    assert "sk-" not in shown
    assert "more words" in shown


def test_a_key_that_has_begun_is_not_shown_before_its_end() -> None:
    text = "here it is\n-----BEGIN RSA PRIVATE KEY-----\n" + "abc def\n" * 100
    assert presentable(text, "", hide) == "here it is\n"


def test_of_very_long_words_the_rest_waits() -> None:
    assert presentable("word " * 20_000, "", hide) == ""
