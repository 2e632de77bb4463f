"""What a tool server says of the risk of its tools, as an author writes it. (MGP §4, §7.3)

Whoever reads it takes it as testimony: it can make a call riskier for a gateway, and never safer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from comity.wire.errors import Misconfigured
from comity.wire.security import LONGEST_NAME, MIRROR, MOST_NAMES

type RiskLevel = Literal["safe", "moderate", "dangerous"]
type SideEffect = Literal["filesystem", "network", "process", "database", "notification"]
type CodeLevel = Literal["unrestricted", "standard", "strict", "readonly"]

_RISKS: Final = ("safe", "moderate", "dangerous")
_EFFECTS: Final = ("filesystem", "network", "process", "database", "notification")
_LEVELS: Final = ("unrestricted", "standard", "strict", "readonly")


@dataclass(frozen=True, slots=True)
class CodeSafety:
    """What code a tool takes, for a gateway that looks into it first. (MGP §7.3)"""

    level: CodeLevel = "strict"
    language: str = "python"
    max_code_size_bytes: int = 10_000
    blocked_imports: tuple[str, ...] = ()
    blocked_patterns: tuple[str, ...] = ()
    allowed_imports: tuple[str, ...] = ()

    def said(self) -> dict[str, object]:
        if self.level not in _LEVELS or self.max_code_size_bytes < 1:
            raise Misconfigured(f"code_safety is of a level ({', '.join(_LEVELS)}) and of a size")
        return {
            "level": self.level,
            "language": self.language,
            "max_code_size_bytes": self.max_code_size_bytes,
            "blocked_imports": list(self.blocked_imports),
            "blocked_patterns": list(self.blocked_patterns),
            **({"allowed_imports": list(self.allowed_imports)} if self.allowed_imports else {}),
        }


@dataclass(frozen=True, slots=True)
class Security:
    """The label of one tool; None leaves a member out. (MGP §4.3)"""

    risk: RiskLevel
    permissions: tuple[str, ...] = ()
    side_effects: tuple[SideEffect, ...] = ()
    validator: str | None = None
    reversible: bool | None = None
    confirmation: bool = False
    code: CodeSafety | None = None

    def said(self) -> dict[str, object]:
        """As it stands on the wire. Raises Misconfigured for what no reader would understand."""
        self._check()
        return {
            "risk_level": self.risk,
            "permissions_required": list(self.permissions),
            "side_effects": list(self.side_effects),
            "confirmation_required": self.confirmation,
            **({} if self.validator is None else {"validator": self.validator}),
            **({} if self.reversible is None else {"reversible": self.reversible}),
            **({} if self.code is None else {"code_safety": self.code.said()}),
        }

    def _check(self) -> None:
        if self.risk not in _RISKS:
            raise Misconfigured(f"risk is one of {', '.join(_RISKS)}, not {self.risk!r:.40}")
        if strange := [each for each in self.side_effects if each not in _EFFECTS]:
            raise Misconfigured(f"no side effect is called {strange[0]!r:.40}")
        names = (*self.permissions, *self.side_effects, self.validator or "")
        if len(names) > MOST_NAMES or any(len(name) > LONGEST_NAME for name in names):
            raise Misconfigured("a label has few names, and short ones")


class Labels:
    """The labels of a server's tools, by name."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, object]] = {}
        self._needs: dict[str, tuple[str, ...]] = {}

    def put(self, tool: str, security: Security) -> None:
        self._said[tool] = security.said()
        self._needs[tool] = security.permissions

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._said)

    def needs(self, tool: object) -> tuple[str, ...]:
        return self._needs.get(tool, ()) if isinstance(tool, str) else ()

    @property
    def permissions(self) -> tuple[str, ...]:
        """All that any tool needs."""
        return tuple(dict.fromkeys(each for needs in self._needs.values() for each in needs))

    def labelled(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """A list of tools with their labels, where MGP has them and in `_meta` as well."""
        return {**result, "tools": [self._labelled(tool) for tool in result.get("tools", ())]}

    def _labelled(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        said = self._said.get(tool.get("name", ""))
        if said is None:
            return {**tool}
        return {**tool, "security": said, "_meta": {**(tool.get("_meta") or {}), MIRROR: said}}
