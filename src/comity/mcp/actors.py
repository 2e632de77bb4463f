"""Principals and the actor of one request. All principals share one id space. (D-97)

Grants name the id of a principal: `agent:ci`, `person:ana@example.org`, `server:files`. They can
also name a group of principals: `group:sre`. The actor of a request follows from its credentials
alone, never from a field of the message. (D-17, D-37)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final


class PrincipalKind(StrEnum):
    """The kind of a principal. Only people answer approval requests."""

    AGENT = "agent"
    PERSON = "person"
    SERVER = "server"
    SYSTEM = "system"


_KIND_PREFIXES: Final = {f"{kind}:": kind for kind in PrincipalKind}


def kind_of(principal: str) -> PrincipalKind:
    """Return the kind that the prefix of a principal's id names, or AGENT without a prefix."""
    for prefix, kind in _KIND_PREFIXES.items():
        if principal.startswith(prefix):
            return kind
    return PrincipalKind.AGENT


GROUP_PREFIX: Final = "group:"
"""The prefix of a group in the subject of a grant. No principal has an id with this prefix."""


type Authority = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...] | None, tuple[str, ...]]
"""The principal, groups, permissions and exclusions of an actor."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The authenticated sender of a request.

    `permissions` bound what this credential may do, whatever its principal may; None is no bound. A
    permission is a verb and a target, as in a grant. A key can also have its own limits of requests
    per minute and per hour. This credential has no access to a verb that begins with one of
    `excluded`, whatever grants its principal has.

    `groups` are the names of its groups, without a prefix. Every cache of decisions has them in its
    key, because two credentials of one principal can have different groups. They come from the
    record of the principal, or from the token if `has_claimed_groups`.
    """

    party: str
    kind: PrincipalKind = PrincipalKind.AGENT
    credential: str = ""
    permissions: tuple[tuple[str, str], ...] | None = None
    claims: Mapping[str, object] | None = None
    requests_per_minute: int | None = None
    requests_per_hour: int | None = None
    # The expiry of the credential, for connections that outlast one request.
    expires_at: datetime | None = field(default=None, compare=False)
    excluded: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    has_claimed_groups: bool = False

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects of grants that concern this actor: its principal and its groups."""
        if not self.groups:
            return (self.party,)
        return self.party, *(GROUP_PREFIX + group for group in self.groups)

    @property
    def authority(self) -> Authority:
        """All that decides what this actor may do, as a key for what is kept for an actor."""
        return self.party, self.groups, self.permissions, self.excluded

    @property
    def is_local(self) -> bool:
        """Whether this is the local user of a gateway in local mode, with or without its token."""
        return self.credential in _LOCAL_CREDENTIALS

    @property
    def lacks_token(self) -> bool:
        """Whether this is the local user without the operator token."""
        return self.credential == LOCAL.credential

    @property
    def has_rate_limit(self) -> bool:
        return self.requests_per_minute is not None or self.requests_per_hour is not None


GATEWAY: Final = "system:gateway"
"""The gateway itself, by its name in MCPx."""

ANONYMOUS: Final = Actor("", PrincipalKind.SYSTEM)
"""The actor of a request without credentials. No grant names it."""

LOCAL: Final = Actor(
    "person:local",
    PrincipalKind.PERSON,
    "local",
    excluded=("admin/", "approval/", "feature/", "scim/"),
)
"""The user of a gateway in local mode, on the same machine, without a credential.

Every process on the machine can be this actor, including tool servers. Therefore it may use the
tools, but it is no operator: it administers nothing and answers no approval request.
"""

LOCAL_OPERATOR: Final = Actor("person:local", PrincipalKind.PERSON, "local:operator")
"""The same person, authenticated by the operator token that the gateway creates at its start."""

_LOCAL_CREDENTIALS: Final = frozenset({LOCAL.credential, LOCAL_OPERATOR.credential})


CALL: Final = "tools/call"


READ: Final = "tools/read"


LIST: Final = "tools/list"


ADMIN_READ: Final = "admin/read"


ADMIN_WRITE: Final = "admin/write"
