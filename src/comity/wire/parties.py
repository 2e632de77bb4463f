"""Who takes part, as it is kept and as it is known in one request. One id space for all. (D-97)

A party's id is what grants name: `agent:ci`, `person:ana@example.org`, `server:files`. Who sent a
request follows from its credentials alone, never from a field of the message. (D-17, D-37)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final


class PartyKind(StrEnum):
    """What a party is; only people answer for others."""

    AGENT = "agent"
    PERSON = "person"
    SERVER = "server"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Party:
    """One who takes part, as the records know it."""

    id: str
    kind: PartyKind = PartyKind.AGENT
    label: str = ""
    disabled: bool = False
    created_by: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a request, by the credential it came with.

    `permissions` are the most that this credential may do, whatever its party may; None is no such
    bound. A permission is a verb and a target, as in a grant. So are the requests of a key in a
    minute and in an hour, where it has such limits of its own. No verb that begins like one of
    `excluded` is open to this credential, whatever its party was granted.
    """

    party: str
    kind: PartyKind = PartyKind.AGENT
    credential: str = ""
    permissions: tuple[tuple[str, str], ...] | None = None
    claims: Mapping[str, object] | None = None
    requests_per_minute: int | None = None
    requests_per_hour: int | None = None
    # Until when the credential counts: for those who stay longer than one request takes.
    expires_at: datetime | None = field(default=None, compare=False)
    excluded: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether this is the local user of a gateway in local mode, with its token or without."""
        return self.credential in _LOCAL_CREDENTIALS

    @property
    def lacks_token(self) -> bool:
        """Whether this is the local user without the operator token."""
        return self.credential == LOCAL.credential

    @property
    def is_paced(self) -> bool:
        return self.requests_per_minute is not None or self.requests_per_hour is not None


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """An API key as the records know it: enough to recognise it, not enough to use it."""

    id: str
    party: str
    mac: bytes
    label: str = ""
    permissions: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    requests_per_hour: int | None = None
    created_by: str = ""
    created_at: datetime | None = None
    not_before: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used: datetime | None = None

    def __repr__(self) -> str:
        return f"Key({self.id!r} of {self.party!r})"


GATEWAY: Final = "system:gateway"
"""The gateway itself, by the name that MCPx gives it."""

NOBODY: Final = Actor("", PartyKind.SYSTEM)
"""Who has shown no credentials where some are needed: no grant names it."""

LOCAL: Final = Actor(
    "person:local", PartyKind.PERSON, "local", excluded=("admin/", "ask/", "feature/")
)
"""The user of a gateway in local mode, on its own machine, without any credential.

Every process on the machine can be this actor, tool servers included. So it uses what servers
offer, and is no operator: it administers nothing and answers no approval request.
"""

LOCAL_OPERATOR: Final = Actor("person:local", PartyKind.PERSON, "local:operator")
"""The same person, who has shown the operator token that the gateway made when it started."""

_LOCAL_CREDENTIALS: Final = frozenset({LOCAL.credential, LOCAL_OPERATOR.credential})
