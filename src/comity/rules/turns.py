"""Turns: how far they may go, how much of the past there is room for, and which words may be shown.

Rule 1: of the past a model is given whole turns, the last ones, as many as there is room for.
Rule 2: words are shown while they come only as far as no more words can make a secret of them.
Rule 3: what a tool answers is cut, and says so.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.rules.injections import tokens_of
from comity.wire.contents import Block, Content

LONGEST_NAME: Final = 64
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_HELD_BACK: Final = 80
"""Characters at the end of which more words may make something else."""

_BEGUN: Final = "-----BEGIN"
MOST_SHOWN: Final = 64 * 1024
"""Of longer words the rest is shown only in the end."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far one turn may go.

    `steps` are a model's replies, `tools` what each of them may use at once, `depth` how many turns
    may bring about each other. Sizes are in characters, or bytes of an answer as it came.
    """

    before: timedelta = timedelta(seconds=5)
    after: timedelta = timedelta(seconds=10)
    whole: timedelta = timedelta(minutes=5)
    steps: int = 16
    tools: int = 16
    depth: int = 3
    attempts: int = 3
    hook_bytes: int = 256 * 1024
    injected_tokens: int = 8_000
    result_length: int = 64 * 1024
    message_length: int = 256 * 1024
    reply_tokens: int = 4_096
    tool_tokens: int = 8_000
    past_turns: int = 50


def is_too_deep(depth: int, bounds: Bounds) -> bool:
    """Whether too many turns have brought about each other. (D-69)"""
    return depth >= bounds.depth


def room_for_past(window: int, bounds: Bounds, *parts: Iterable[Block]) -> int:
    """How many tokens of a model's window are left for the past, beside what must be there."""
    taken = bounds.reply_tokens + bounds.tool_tokens + sum(map(tokens_of, parts))
    return max(window - taken, 0)


def how_many_fit(weights: Iterable[int], room: int) -> int:
    """How many of the last turns, the very last first, there is room for."""
    number = 0
    for weight in weights:
        room -= weight
        if room < 0:
            break
        number += 1
    return number


def cut(content: Content, most: int) -> Content:
    """As much of it as a model is given."""
    kept: list[Block] = []
    for block in content:
        if block.size <= most:
            most -= block.size
            kept.append(block)
            continue
        if block.type == "text" and most > 0:
            kept.append(Block("text", block.text[:most]))
        kept.append(Block("text", "[the rest is left out: it is too long]"))
        break
    return tuple(kept)


def tool_names(names: Iterable[str]) -> Mapping[str, str]:
    """Tools by a name that every model takes; two never have the same."""
    found: dict[str, str] = {}
    for name in names:
        plain = _NO_NAME.sub("_", name)[:LONGEST_NAME] or "_"
        number, given = 2, plain
        while given in found:
            ending = f"_{number}"
            given = plain[: LONGEST_NAME - len(ending)] + ending
            number += 1
        found[given] = name
    return found


def presentable(text: str, shown: str, hide: Callable[[str], str]) -> str:
    """What may be shown of words that are still coming, beyond what was; empty for nothing yet."""
    if len(text) > MOST_SHOWN:
        return ""
    said = hide(text)
    begun = said.rfind(_BEGUN)
    end = len(said) - _HELD_BACK if begun < 0 else min(begun, len(said) - _HELD_BACK)
    # Only whole words: the half of one may be the half of a key.
    end = max(said.rfind(" ", 0, max(end, 0)), said.rfind("\n", 0, max(end, 0))) + 1
    if end <= len(shown) or not said.startswith(shown):
        return ""
    return said[len(shown) : end]
