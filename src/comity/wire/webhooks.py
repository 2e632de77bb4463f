"""Webhooks: who is told of which events where, what still waits to be told, and what can fail."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from comity.wire.events import Severity

SUBSCRIBE: Final = "events/subscribe"
"""The verb: to have events posted to `webhooks/HOST`."""

PLACES: Final = "webhooks"
"""What stands for the server in the target of such a grant; the host stands for the tool."""

WEBHOOK_ID: Final = "webhook-id"
WEBHOOK_TIMESTAMP: Final = "webhook-timestamp"
WEBHOOK_SIGNATURE: Final = "webhook-signature"
OF_SUBSCRIPTION: Final = "x-mcp-subscription-id"


class State(StrEnum):
    """Whether anything is posted. One that failed for long is off until somebody sees to it."""

    ACTIVE = "active"
    DISABLED = "disabled"


class Problem(StrEnum):
    """Why a post did not arrive, in the draft's words and, below them, ours.

    Nothing that a place said is among them: whoever chose it would learn what is there.
    """

    REFUSED = "connection_refused"
    TIMEOUT = "timeout"
    TLS = "tls_error"
    STATUS_4XX = "http_4xx"
    STATUS_5XX = "http_5xx"
    CHALLENGE = "challenge_failed"
    STATUS_3XX = "http_3xx"
    NO_HTTP = "no_http"
    FORBIDDEN = "address_refused"
    SECRET = "secret_unreadable"  # noqa: S105  # a word for people


class Place(NamedTuple):
    """Where a post goes, read in one way only. `is_named` is one that an operator named."""

    scheme: str
    host: str
    port: int
    path: str
    is_named: bool

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return host if self.port == usual else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class Subscription:
    """One party's events, posted to one place.

    `sealed` are its secrets as they are kept, the newest first; the one before counts until
    `rotated_until`. `credential` is by which its party came. `failures` are those in a row.
    """

    id: str
    party: str
    credential: str
    url: str
    name: str
    least: Severity
    created_at: datetime
    expires_at: datetime | None
    sealed: tuple[bytes, ...] = ()
    rotated_until: datetime | None = None
    state: State = State.ACTIVE
    failures: int = 0
    failing_since: datetime | None = None
    last_error: str = ""
    delivered_at: datetime | None = None
    waiting: int = 0
    failed: int = 0
    dropped: int = 0

    def __repr__(self) -> str:
        return f"Subscription({self.id!r} of {self.party!r})"


@dataclass(frozen=True, slots=True)
class Post:
    """One event for one subscription. `number` is the store's own, in the order of writing."""

    subscription: str
    event: str
    body: bytes
    at: datetime
    due_at: datetime
    number: int = 0
    attempts: int = 0
    failed: bool = False
    last_error: str = ""
