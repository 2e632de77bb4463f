"""Notifiers over a real store, with a clock that a test moves and channels that keep messages."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from comity.app.records import RecordStores
from comity.approvals.model import (
    ANSWER_VERB,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
)
from comity.approvals.notifiers.model import (
    ApprovalNotice,
    NotifierChannel,
    NotifierKind,
    NotifierSettings,
)
from comity.approvals.notifiers.recipients import ApproverDirectory
from comity.approvals.notifiers.service import ApprovalNotifier, NotifierService
from comity.approvals.presentation import ApprovalLinks
from comity.approvals.service import ApprovalInbox, ApprovalService
from comity.approvals.settings import ApprovalSettings
from comity.errors import Unavailable
from comity.events.webhooks.model import AllowedHosts
from comity.events.webhooks.notifier_posts import NotifierPosts
from comity.events.webhooks.sender import HttpWebhookSender, WebhookTimeouts
from comity.mcp.actors import Actor, PrincipalKind
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot
from tests.support.clock import ManualClock
from tests.support.inbox_scene import a_question
from tests.support.inline_store import inline_records

NOW = datetime(2026, 11, 15, 12, 0, 30, tzinfo=UTC)
ANA, BEN, EVE = "person:ana@example.org", "person:ben@example.org", "person:eve@example.org"
PEPPER = b"a pepper of thirty-two characters"
GRANTS = (
    Grant(ANA, ANSWER_VERB, "files/*", Effect.ALLOW),
    Grant(BEN, ANSWER_VERB, "files/*", Effect.ALLOW),
)


class KeptMessages:
    """A channel that keeps its messages, of which the first few fail."""

    def __init__(
        self,
        failures: int = 0,
        *,
        personal: bool = True,
        feed: bool = False,
        problem: Exception | None = None,
    ) -> None:
        self.failures = failures
        self.problem = problem or Unavailable("not now")
        self.tried = 0
        self.sent: list[tuple[ApprovalNotice, str]] = []
        self.is_personal = personal
        self.hears_every_change = feed

    def can_reach(self, person: str) -> bool:
        return True

    def wants_change(self, request: ApprovalRequest) -> bool:
        return True

    def close(self) -> None:
        pass

    async def send(self, notice: ApprovalNotice, reference: str = "") -> str:
        self.tried += 1
        if self.tried <= self.failures:
            raise self.problem
        self.sent.append((notice, reference))
        return reference or f"message {len(self.sent)}"

    @property
    def told(self) -> list[tuple[str, str]]:
        """The phase and the recipient of each message."""
        return [(str(notice.phase), notice.recipient) for notice, _ in self.sent]


def an_entry(name: str = "it", **changed: Any) -> NotifierSettings:
    return NotifierSettings(name=name, kind=changed.pop("kind", NotifierKind.EMAIL), **changed)


def named(party: str, key: str) -> Actor | None:
    if not party.startswith(("person:", "agent:")):
        return None
    kind = PrincipalKind.PERSON if party.startswith("person:") else PrincipalKind.AGENT
    return Actor(party, kind, "link")


def the_posts(timeout: float = 10.0) -> NotifierPosts:
    """Real posts, of which the public ones may go to this machine too."""

    async def resolve(name: str) -> Sequence[str]:
        return ("127.0.0.1",)

    sender = HttpWebhookSender(resolve, WebhookTimeouts(timeout, timeout))
    return NotifierPosts(sender, AllowedHosts(frozenset({"127.0.0.1"})))


@dataclass
class NotifierScene:
    """One node. A second one with the same records is another node of the cluster."""

    channels: dict[str, tuple[NotifierSettings, NotifierChannel]]
    records: RecordStores = field(default_factory=inline_records)
    clock: ManualClock[datetime] = field(default_factory=lambda: ManualClock(NOW))
    grants: Sequence[Grant] = GRANTS
    groups: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def __post_init__(self) -> None:
        self.snapshot = GrantSnapshot(GrantSet.from_grants(self.grants))
        settings = ApprovalSettings(notifiers=tuple(each for each, _ in self.channels.values()))
        self.approvals = ApprovalService(
            self.records.approval_requests,
            self.snapshot,
            settings=settings,
            clock=self.clock,
            public_url="https://comity.example.org",
        )
        self.inbox = ApprovalInbox(self.approvals, ApprovalLinks(PEPPER), named)
        directory = ApproverDirectory(self.snapshot, self.inbox, self._members_of)
        self.service = NotifierService(
            [ApprovalNotifier(*each) for each in self.channels.values()],
            self.records.approval_requests.notices,
            self.approvals,
            directory,
        )

    def _members_of(self, groups: Collection[str]) -> Sequence[str]:
        return [each for group in groups for each in self.groups.get(group, ())]

    async def ask(self, number: int = 1, **changed: Any) -> ApprovalRequest:
        return await self.approvals.open(a_question(self.approvals, number, **changed))

    async def answer(self, request: ApprovalRequest, by: str = ANA, accept: bool = True) -> None:
        decision = ApprovalDecision.ACCEPT if accept else ApprovalDecision.DECLINE
        actor = named(by, "")
        assert actor is not None
        await self.approvals.answer(actor, request.id, decision)

    async def run(self) -> None:
        """Run all jobs that are due now, and those that they add."""
        for _ in range(12):
            await self.service.runner.start_due_jobs()
            await self.service.runner.finish()

    async def run_after(self, **time: float) -> None:
        self.clock.now += timedelta(**time)
        await self.run()


def a_request(**changed: Any) -> ApprovalRequest:
    """A request that no store holds."""
    about = {"tool": "files__write", "risk": "dangerous", "arguments": {"path": "/a"}}
    said: dict[str, Any] = {
        "id": "06gu44bi0000000000000000ab",
        "kind": ApprovalKind.CONFIRM,
        "asker": "agent:ci",
        "server": "files",
        "tool": "write",
        "digest": "digest",
        "message": "message",
        "about": about,
        "created_at": NOW,
        "expires_at": NOW + timedelta(minutes=15),
    }
    return ApprovalRequest(**(said | changed))


def secret_file(folder: Path, name: str, content: str) -> str:
    file = folder / name
    file.write_text(f"{content}\n")
    file.chmod(0o600)
    return str(file)
