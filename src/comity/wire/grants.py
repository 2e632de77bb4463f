"""Who may do what, as it is written down: grants, and an operator's guardrails. (MGP §5, D-85)

A target is `server/name`, `server/*`, or `*`; either part may hold `*` for any characters. A verb
is the wire method (`tools/call`), `tools/read` or `tools/list` for a tool that is only looked at,
`perm` for what a server may do itself, `feature/enable` for its feature sets, or one of ours
(`admin/read`, `admin/write`, `ask/answer`); `*` and a trailing `/*` stand for several.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

CALL: Final = "tools/call"
READ: Final = "tools/read"
LIST: Final = "tools/list"
PERMISSION: Final = "perm"
FEATURE: Final = "feature/enable"
ADMIN_READ: Final = "admin/read"
ADMIN_WRITE: Final = "admin/write"
EVERYBODY: Final = "*"
EVERYTHING: Final = "*"


type Where = Mapping[str, object] | None
"""A condition on arguments, if there is one."""


class Effect(StrEnum):
    """What follows from a grant; of two at one level the stricter counts."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Source(StrEnum):
    """Where an entry stands: only what stands in the records can be changed at a door."""

    FILE = "file"
    RECORDS = "records"
    BUILT_IN = "built_in"


@dataclass(frozen=True, slots=True)
class Grant:
    """One entry. `id` is the record's own; at most one entry has the same subject, verb, target.

    One with `where`, a condition on arguments, is no such entry: it is a standing answer. Whoever
    would be asked about a call that it covers is not asked; it never allows what is not.
    `rules.conditions` says what may stand in it, and there may be several with others.
    """

    subject: str
    verb: str
    target: str
    effect: Effect
    id: str = ""
    source: Source = Source.RECORDS
    granted_by: str = ""
    justification: str = ""
    granted_at: datetime | None = None
    expires_at: datetime | None = None
    where: Where = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Forbid:
    """A guardrail: what it covers is denied, and nothing overrides it. (S4)"""

    subject: str
    verb: str
    target: str
    why: str = ""
