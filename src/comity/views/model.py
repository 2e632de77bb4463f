"""The views of an operator, as the settings declare them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAX_VIEW_TOOLS: Final = 1000
"""The most tools of one view. A model cannot choose among more."""

HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""The annotations that an operator can correct."""


class PrefixRule(StrEnum):
    """When the name of a tool in a view begins with the name of its server."""

    ALWAYS = "always"
    ON_CONFLICT = "on_conflict"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class ToolOverride:
    """The changes that a view makes to one tool. An empty member changes nothing.

    `arguments` are fixed: each call has exactly these values. `defaults` apply to calls that leave
    the argument out. `definition` is the beginning of the digest that the operator has seen.
    """

    server: str
    tool: str
    name: str = ""
    title: str = ""
    description: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    annotations: Mapping[str, bool] = field(default_factory=dict[str, bool])
    definition: str = ""

    @property
    def target(self) -> str:
        return f"{self.server}/{self.tool}"


@dataclass(frozen=True, slots=True)
class View:
    """A named subset of tools.

    `select` holds targets in the form of grants. The tools in `overrides` belong to the view too.
    """

    name: str
    title: str = ""
    description: str = ""
    select: tuple[str, ...] = ()
    prefix: PrefixRule = PrefixRule.ON_CONFLICT
    overrides: tuple[ToolOverride, ...] = ()
