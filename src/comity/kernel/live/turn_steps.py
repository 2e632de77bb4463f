"""What was said and done in turns, step by step: what a model is given of it, and what is kept.

Rule 1: what a tool answered never stands without what it was asked.
Rule 2: what went out is what the past knows. What a server rewrote, or was hidden, comes back in no
        later turn.
Rule 3: a tool that was about to be used when a turn was broken off is not used again: the model is
        told that nobody knows what came of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from comity.ports.conversations import KeptTurn
from comity.ports.models import Step, ToolResult
from comity.rules import turns
from comity.rules.injections import Placed, safe_label, tokens_of
from comity.wire.contents import Content, said, text_of

GO_ON: Final = said("(Go on.)")
NOTHING_SAID: Final = "(nothing was said)"
BETWEEN: Final = "\n\n"
_AMONG_OTHERS: Final = ("channel", "topic", "push")
"""What may be said by several, or by nobody who may instruct: whose words they are is told."""

_UNKNOWN: Final = said(
    "the host ended while this tool was used; whether it did anything is not known"
)


def words_of(steps: Iterable[Step]) -> str:
    """All that the model said in them."""
    parts = (text_of(step.content) for step in steps if step.role == "assistant")
    return BETWEEN.join(part for part in parts if part)


def weight_of(step: Step) -> int:
    """About how many tokens it takes."""
    used = sum(len(repr(use.arguments)) // 3 + 16 for use in step.uses)
    brought = sum(tokens_of(result.content) + 8 for result in step.results)
    return tokens_of(step.content) + used + brought


def mended(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Steps of a turn that was broken off, so that a model can go on with them."""
    if not steps or not steps[-1].uses:
        return tuple(steps)
    results = tuple(ToolResult(use.id, _UNKNOWN, is_error=True) for use in steps[-1].uses)
    return (*steps, Step("user", results=results))


def as_said(steps: Sequence[Step], text: str) -> tuple[Step, ...]:
    """The same steps, if these are the words that went out; else with those alone."""
    if words_of(steps) == text:
        return tuple(steps)
    silent = [replace(step, content=()) if step.uses else step for step in steps]
    kept = (step for step in silent if step.uses or step.results)
    return (*kept, Step("assistant", said(text or NOTHING_SAID)))


def past_of(turns_before: Sequence[KeptTurn], room: int) -> tuple[Step, ...]:
    """As much of a conversation's past as there is room for; its last turns come first here."""
    told = [_told(each) for each in turns_before]
    number = turns.how_many_fit((sum(map(weight_of, each)) for each in told), room)
    return tuple(step for each in reversed(told[:number]) for step in each)


def asked(turn: KeptTurn, placed: Placed) -> Step:
    """What the user says, with what servers put around it."""
    return Step("user", (*placed.before, *_spoken(turn), *placed.after))


def _told(turn: KeptTurn) -> tuple[Step, ...]:
    return (Step("user", _spoken(turn)), *turn.steps)


def _spoken(turn: KeptTurn) -> Content:
    """What is to be answered, and who said it, where there may be several."""
    if not turn.content:
        return GO_ON
    is_among_others = turn.errand.get("origin") in _AMONG_OTHERS
    author = safe_label(str(turn.errand.get("author", ""))) if is_among_others else ""
    return (*said(f"[{author}]"), *turn.content) if author else turn.content
