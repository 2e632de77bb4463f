"""What was accepted of a server: its tools as they were then, and the server itself. (attack 2)"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Pin:
    """A tool's definition as it was when it was accepted: the canonical JSON and its SHA-256."""

    server: str
    tool: str
    digest: str
    definition: bytes
    accepted_by: str = ""
    accepted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """A server that somebody registered through a door, as opposed to one in a file. (MGP §15.4)"""

    server: str
    entry: Mapping[str, object]
    created_by: str
    created_at: datetime | None = None
    justification: str = ""
