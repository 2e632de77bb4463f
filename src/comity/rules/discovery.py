"""Which servers a client is told of when it asks, and what is said of each. (MGP §15.2, §15.3)

Rule 1: what a server said of itself when it was met counts; before that, what its operator wrote.
Rule 2: trust is the operator's to give. A server's own word can only lower it. (D-14)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.lifecycle import State
from comity.wire.negotiation import Statement

_LEVELS: Final = ("sandboxed", "standard", "trusted")
_USUAL: Final = "standard"
_ALSO_CALLED: Final = {"core": "trusted", "experimental": "sandboxed", "untrusted": "sandboxed"}


class _Wanted(Struct):
    extensions: list[str] = []
    permissions: list[str] = []
    status: State | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """One server as it stands just now; `met` is whether it ever shook hands."""

    id: str
    status: State
    tools: tuple[str, ...] = ()
    met: bool = False
    said: Statement | None = None
    declared: Statement | None = None

    @property
    def extensions(self) -> frozenset[str]:
        known = self.said if self.met else self.declared
        return frozenset() if known is None else known.extensions

    @property
    def permissions(self) -> frozenset[str]:
        """What it needs by anybody's word: to keep silent about a need helps nobody."""
        known = [each.permissions for each in (self.said, self.declared) if each is not None]
        return frozenset(name for names in known for name in names)

    @property
    def trust_level(self) -> str:
        given = (None if self.declared is None else self.declared.trust_level) or _USUAL
        claimed = (None if self.said is None else self.said.trust_level) or given
        claimed = _ALSO_CALLED.get(claimed, claimed)
        return min(given, claimed, key=_LEVELS.index) if claimed in _LEVELS else given

    def shown(self) -> dict[str, object]:
        return {
            "id": self.id,
            "status": self.status,
            "mgp_version": None if self.said is None else self.said.version,
            "extensions": sorted(self.extensions),
            "tools": list(self.tools),
            "trust_level": self.trust_level,
        }


@dataclass(frozen=True, slots=True)
class Filter:
    """Which of them are wanted; a server has to have all that is named."""

    extensions: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()
    status: State | None = None

    @classmethod
    def parse(cls, params: Mapping[str, Raw]) -> Self:
        """Read the parameters of `mgp/discovery/list`. Raises MalformedMessage."""
        try:
            found = msgspec.convert(jsonrpc.value(params.get("filter", Raw(b"{}"))), _Wanted)
        except msgspec.ValidationError as error:
            raise MalformedMessage(f"filter: {error!s:.200}", INVALID_PARAMS) from None
        return cls(frozenset(found.extensions), frozenset(found.permissions), found.status)

    def lets_through(self, server: Listed) -> bool:
        return (
            self.extensions <= server.extensions
            and self.permissions <= server.permissions
            and self.status in (None, server.status)
        )
