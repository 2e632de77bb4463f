"""Words while they come: shown in order, once, and to those who follow them."""

import asyncio

from comity.kernel.live.turn_words import MOST_FOLLOWED, Followed, Words
from comity.ports.models import Piece
from tests.pace import here


def hide(text: str) -> str:
    return text.replace("SECRET", "[hidden]")


def heard(words: Words) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    words.show.append(lambda index, delta: found.append((index, delta)))
    return found


async def test_pieces_are_numbered_and_make_up_the_whole() -> None:
    words = Words(hide)
    found = heard(words)
    text = "some words " * 60
    for start in range(0, len(text), 7):
        words.heard(Piece(text[start : start + 7]))
    words.heard(Piece("never shown", is_thinking=True))
    assert found
    words.finish(text)
    assert [index for index, _ in found] == list(range(len(found)))
    assert "".join(delta for _, delta in found) == text


async def test_what_somebody_looks_at_first_is_shown_in_the_end() -> None:
    words = Words(hide)
    found = heard(words)
    words.is_open = False
    words.heard(Piece("words " * 100))
    assert found == []
    words.finish("other words")
    assert found == [(0, "other words")]


async def test_where_the_end_is_another_no_more_is_shown() -> None:
    words = Words(hide)
    found = heard(words)
    words.heard(Piece("some words " * 60))
    shown = list(found)
    assert shown
    words.finish("quite other words")
    assert found == shown
    assert words.is_over


async def test_who_follows_is_woken_by_more_words_and_by_the_end() -> None:
    words = Words(hide)
    async with asyncio.timeout(here(30)):
        await words.more_than(0, 0.01)
        waiting = asyncio.ensure_future(words.more_than(0, 3600))
        over = asyncio.ensure_future(words.over())
        await asyncio.sleep(0)
        words.heard(Piece("some words " * 60))
        await waiting
        assert not over.done()
        words.end()
        await over
        await words.more_than(10**9, 3600)


async def test_only_the_last_turns_are_followed() -> None:
    followed = Followed(hide)
    first = followed.of("first")
    assert followed.of("first") is first
    first.end()
    assert followed.of("first") is not first
    for number in range(MOST_FOLLOWED):
        followed.of(str(number))
    assert followed.known("first") is None
    assert followed.known("1") is not None
