"""One tool as its server defines it, for those who look at what it is called with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tool:
    """Its server, its own name there, and its whole definition, of which no word is proved."""

    server: str
    name: str
    definition: Mapping[str, object] = field(default_factory=lambda: NOTHING)
