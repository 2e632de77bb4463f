"""Checkpoints of a feature set as a tree: what is kept of each, and which are dropped. (MCPL §8)

Rule 1: a checkpoint that is kept never changes, and one that comes after another has the greater
        number; so the tree has no circles, and what a patch gives is known before it is written.
Rule 2: the current checkpoint is never dropped. What rests on one that is dropped becomes whole
        before, so nothing that is kept can no longer be rebuilt.
Rule 3: a state is at most so many patches away from data, so what it costs to rebuild is bounded.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from comity.wire.state_trees import Form, Node, Tree

LONGEST_LINE: Final = 32
"""How many patches stand between a state and data at most."""

SLACK: Final = 8
"""One part in so many may be too much for a while: dropping costs more than one more row."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How many checkpoints of a feature set are kept, and for how long; None is for good."""

    most: int = 100
    within: timedelta | None = None


def form_of(state: bytes | None, patch: bytes | None, base: Node | None) -> tuple[Form, int]:
    """How a state is kept that came so, and how far from data that is. (rule 3)"""
    if state is None:
        return Form.OPAQUE, 0
    if patch is None or base is None or len(patch) >= len(state) or base.line >= LONGEST_LINE:
        return Form.DATA, 0
    return Form.PATCH, base.line + 1


def outdated(tree: Tree, retention: Retention, now: datetime) -> frozenset[int]:
    """The checkpoints that are dropped now."""
    numbers = sorted(tree.nodes)
    late: set[int] = set()
    if len(numbers) > retention.most + retention.most // SLACK:
        late.update(numbers[: len(numbers) - retention.most])
    if retention.within is not None:
        since = now - retention.within
        late.update(number for number in numbers if tree.nodes[number].at < since)
    return frozenset(late - {tree.head})


def resting_on(tree: Tree, dropped: Collection[int]) -> list[Node]:
    """The checkpoints that stay and are patches of one that does not."""
    return [
        each
        for number, each in sorted(tree.nodes.items())
        if each.form is Form.PATCH and each.base in dropped and number not in dropped
    ]


def line_to(tree: Tree, number: int | None) -> Iterator[Node]:
    """A checkpoint, what it follows, and so on, as far as that is kept."""
    while number is not None and number in tree.nodes:
        yield tree.nodes[number]
        number = tree.nodes[number].base
