"""Notifiers and their notices: what is sent, to whom, and the interface of each kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from comity.approvals.model import ApprovalKind, ApprovalRequest
from comity.policy.risk import Risk
from comity.toolkit.jobs import QueuedJob

PERSON_PREFIX: Final = "person:"
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


class NotifierKind(StrEnum):
    """Where a notifier sends its messages."""

    WEBHOOK = "webhook"
    SLACK = "slack"
    TEAMS = "teams"
    EMAIL = "email"
    WEB_PUSH = "web_push"


class NoticePhase(StrEnum):
    """Why a message is sent."""

    REQUESTED = "requested"
    ESCALATED = "escalated"
    CHANGED = "changed"
    DIGEST = "digest"
    TEST = "test"


class LinkMode(StrEnum):
    """Whether a link in a message asks for sign-in, or answers as the named person."""

    SIGN_IN = "sign-in"
    ANSWER = "answer"


class MailSecurity(StrEnum):
    """How the connection to a mail server is encrypted."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class QuietHours:
    """The hours in which only requests of at least the risk `passes` are sent at once."""

    start: time
    end: time
    zone: tzinfo
    passes: Risk = Risk.DANGEROUS


@dataclass(frozen=True, slots=True)
class DigestSchedule:
    """How often the requests of at most this risk are sent, together in one message."""

    every: timedelta
    max_risk: Risk = Risk.MODERATE


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class NotifierSettings:
    """One entry of `[[approvals.notifiers]]`. A URL may hold a secret, so no repr shows it."""

    name: str
    kind: NotifierKind
    # Which requests.
    min_risk: Risk = Risk.SAFE
    servers: tuple[str, ...] = ()
    kinds: tuple[ApprovalKind, ...] = ()
    # Whom: principals and groups. Without any, all people who may answer.
    to: tuple[str, ...] = ()
    # When.
    quiet_hours: QuietHours | None = None
    digest: DigestSchedule | None = None
    escalate_after: timedelta | None = None
    escalate_to: str = ""
    # Where.
    url: str = ""
    url_file: str = ""
    secret_file: str = ""
    links: LinkMode = LinkMode.SIGN_IN
    token_file: str = ""
    channel: str = ""
    signing_secret_file: str = ""
    users: Mapping[str, str] = _EMPTY
    api_url: str = "https://slack.com/api"
    host: str = ""
    port: int = 587
    security: MailSecurity = MailSecurity.STARTTLS
    sender: str = ""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    addresses: Mapping[str, str] = _EMPTY
    contact: str = ""

    @property
    def secret_files(self) -> tuple[str, ...]:
        """The files that hold secrets; empty names for those that are not set."""
        files = (self.url_file, self.secret_file, self.token_file)
        return (*files, self.signing_secret_file, self.password_file)

    def __repr__(self) -> str:
        return f"NotifierSettings({self.name!r}, {self.kind})"


@dataclass(frozen=True, slots=True)
class ApprovalNotice:
    """One message: the requests it is about, the person it is for, and the approvers.

    A digest has several requests, a test none. `recipient` is empty for a message to a channel.
    """

    phase: NoticePhase
    at: datetime
    requests: tuple[ApprovalRequest, ...] = ()
    recipient: str = ""
    approvers: tuple[str, ...] = ()

    @property
    def request(self) -> ApprovalRequest:
        """The request of a message that is no digest and no test."""
        return self.requests[0]


class PostReply(NamedTuple):
    """The answer to a post: its status, and as much of its body as was asked for."""

    status: int
    body: bytes = b""


class OutgoingPosts(Protocol):
    """Sends HTTP requests. The implementation knows which hosts are allowed."""

    def check_public(self, url: str) -> None:
        """Raise MalformedMessage unless a browser may name this URL as its push service."""
        ...

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, max_bytes: int = 0
    ) -> PostReply:
        """Post to a URL of the operator. Raises Unavailable without an answer."""
        ...

    async def post_public(self, url: str, headers: Mapping[str, str], body: bytes) -> PostReply:
        """Post to a URL of another person, which must be public. Raises Unavailable."""
        ...


class NotifierChannel(Protocol):
    """One kind of notifier, which sends messages to one place."""

    @property
    def is_personal(self) -> bool:
        """Whether each person gets a message of its own."""
        ...

    @property
    def hears_every_change(self) -> bool:
        """Whether it gets the changes of requests for which it sent no message."""
        ...

    def can_reach(self, person: str) -> bool:
        """Return whether it has an address of this person."""
        ...

    def wants_change(self, request: ApprovalRequest) -> bool:
        """Return whether a message about this change of a request is sent."""
        ...

    async def send(self, notice: ApprovalNotice, reference: str = "") -> str:
        """Send a message, and return a reference to it.

        `reference` is the message about the same request that is changed or followed. Raises
        Unavailable if a later attempt may succeed, Misconfigured if none can.
        """
        ...

    def close(self) -> None:
        """Release what the channel holds."""
        ...


@dataclass(frozen=True, slots=True)
class PushSubscription:
    """The push subscription of one browser of a person."""

    id: str
    party: str
    endpoint: str
    # The public key and the authentication secret of the browser. (RFC 8291)
    p256dh: bytes
    auth: bytes
    created_at: datetime

    def __repr__(self) -> str:
        return f"PushSubscription({self.id!r} of {self.party!r})"


class PushSubscriptionStore(Protocol):
    """Stores the push subscriptions of all people."""

    async def put(self, subscription: PushSubscription) -> None: ...

    async def list_of_party(self, party: str) -> Sequence[PushSubscription]:
        """Return the subscriptions of a person, the newest first. Raises Unavailable."""
        ...

    async def remove(self, party: str, id: str) -> bool:
        """Remove a subscription of this person, and return whether it existed."""
        ...


class NoticeTask(StrEnum):
    """The task of a job in the notice queue."""

    DISPATCH = "dispatch"
    SEND = "send"
    DIGEST = "digest"
    ESCALATE = "escalate"


class NoticeOrder(Struct, frozen=True, omit_defaults=True):
    """The payload of a job. It names a request and never holds its content."""

    task: NoticeTask
    request: str = ""
    notifier: str = ""
    phase: NoticePhase = NoticePhase.REQUESTED
    recipient: str = ""
    reference: str = ""
    failures: int = 0


def change_job(request: ApprovalRequest, at: datetime) -> QueuedJob:
    """Return the job that tells the notifiers about the present state of a request.

    The store adds it in the transaction of the change, so that no notice is lost.
    """
    order = NoticeOrder(NoticeTask.DISPATCH, request.id)
    key = f"change/{request.id}/{change_label(request)}"
    return QueuedJob(key, at, at, payload=msgspec.json.encode(order))


def change_label(request: ApprovalRequest) -> str:
    """Return a name of the present state of a request, which a later state does not have."""
    return f"{request.state}.{len(request.answers)}"
