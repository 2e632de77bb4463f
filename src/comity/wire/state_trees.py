"""Checkpoints as a host keeps them: one tree for each feature set of a server. (MCPL §8.2)"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final


class Form(StrEnum):
    """How the state of a checkpoint is kept; `opaque` where its server alone has it."""

    DATA = "data"
    PATCH = "patch"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Node:
    """One checkpoint, without its state.

    `parent` is what its server said it follows; `base` is the number of that one, None where that
    is not kept here. `line` is how many patches away from data it is. `why` says why a state that
    came with it is not kept (D-67), and `is_lost` that its server no longer knows it (§8.7).
    """

    number: int
    name: str
    at: datetime
    parent: str | None = None
    base: int | None = None
    form: Form = Form.OPAQUE
    line: int = 0
    size: int = 0
    why: str = ""
    is_lost: bool = False


_NO_NODES: Final[Mapping[int, Node]] = {}


@dataclass(frozen=True, slots=True)
class Tree:
    """All checkpoints of a feature set; `revision` is another after each change."""

    revision: int = 0
    head: int | None = None
    nodes: Mapping[int, Node] = field(default_factory=lambda: _NO_NODES)

    def named(self, name: str | None) -> Node | None:
        return next((each for each in self.nodes.values() if each.name == name), None)
