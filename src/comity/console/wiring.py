"""Builds the event stream, the overview and the other routes of the console."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from comity.accounts.service import AccountService
from comity.app.authentication import HttpAuthenticator
from comity.app.cluster import LocalClusterNode
from comity.app.records import GatewaySnapshot
from comity.approvals.model import ApprovalRequest
from comity.approvals.service import ApprovalService
from comity.audit.chain import AuditRecord
from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.catalog.catalog import Catalog
from comity.catalog.tool_reviews import ToolReviewService
from comity.console.cluster import ConsoleBus
from comity.console.overview import OverviewApi
from comity.console.samples import TrafficSample, TrafficSampler
from comity.console.stream import ChangeHint, HintStream, HintTopic
from comity.errors import MalformedMessage
from comity.http.api import ApiRoutes
from comity.mcp.actors import ADMIN_READ, Actor
from comity.mcp.entries import EntryKind
from comity.servers.service import ServerService, ServerTransition
from comity.sessions.calls import ActiveCalls
from comity.sessions.sessions import SessionStore
from comity.storage.changes import RecordKind
from comity.topics.service import TopicService
from comity.topics.topic import Topic

_TOPIC_BY_RECORD: Final = {
    RecordKind.GRANTS: HintTopic.GRANTS,
    RecordKind.PARTIES: HintTopic.PRINCIPALS,
    RecordKind.KEYS: HintTopic.KEYS,
    RecordKind.PINS: HintTopic.TOOLS,
    RecordKind.REGISTRATIONS: HintTopic.SERVERS,
}
_TOPICS_TYPES: Final = frozenset(
    {
        AuditType.TOPIC_JOINED,
        AuditType.TOPIC_LEFT,
        AuditType.TOPIC_MESSAGE,
        AuditType.TOPIC_CALLED,
        AuditType.PROPOSAL_FULFILLED,
    }
)
_LIVE_TYPES: Final = frozenset(
    {
        AuditType.FEATURES_DECLARED,
        AuditType.FEATURES_CHANGED,
        AuditType.FEATURE_USED,
        AuditType.STATE_STORED,
        AuditType.STATE_DELETED,
        AuditType.STATE_ROLLED_BACK,
        AuditType.MODEL_CALLED,
        AuditType.TURN_STARTED,
        AuditType.TURN_ENDED,
        AuditType.PUSH_RECEIVED,
        AuditType.PUSH_COMPLETED,
        AuditType.PUSH_FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class ConsoleDependencies:
    """The parts of a gateway that the console shows."""

    servers: ServerService
    catalog: Catalog
    tool_reviews: ToolReviewService
    sessions: SessionStore
    active_calls: ActiveCalls
    approvals: ApprovalService
    topics: TopicService
    audit_log: AuditLog
    accounts: AccountService
    snapshot: GatewaySnapshot
    http_authenticator: HttpAuthenticator
    count_usage: Callable[[], tuple[int, int]]
    node: str


@dataclass(frozen=True, slots=True)
class ConsoleComponents:
    """The event stream, the samples and the routes of the console."""

    stream: HintStream
    sampler: TrafficSampler
    routes: ApiRoutes
    bus: ConsoleBus | None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Take samples, and exchange them with other nodes, until the context ends."""
        task = asyncio.ensure_future(self.sampler.run())
        joined = contextlib.nullcontext() if self.bus is None else self.bus.running()
        try:
            async with joined:
                yield
        finally:
            task.cancel()
            self.stream.end()


def build_console(
    parts: ConsoleDependencies, cluster: LocalClusterNode | None
) -> ConsoleComponents:
    """Build the event stream and its sources."""
    sampler = TrafficSampler(
        parts.node,
        parts.active_calls.update_metrics,
        lambda: parts.approvals.open_count,
        parts.count_usage,
    )
    stream = HintStream(
        parts.http_authenticator.authenticate,
        partial(_may_read, parts.http_authenticator),
        parts.sessions.streams.hold,
    )
    bus = (
        None
        if cluster is None
        else ConsoleBus(
            cluster.bus, cluster.members.prefix, stream, sampler, parts.approvals.results
        )
    )
    HintSources(stream, bus, parts.approvals).connect(parts, cluster)
    sampler.watchers.append(partial(_publish_sample, sampler, stream))
    overview = OverviewApi(
        parts.servers,
        parts.catalog,
        parts.tool_reviews.withheld_definitions,
        parts.approvals.store,
        lambda: len(parts.snapshot.parties),
        lambda: len(parts.sessions),
        sampler,
    )
    return ConsoleComponents(stream, sampler, overview.routes, bus)


def _may_read(http_authenticator: HttpAuthenticator, actor: Actor) -> bool:
    try:
        http_authenticator.require_grant(actor, ADMIN_READ)
    except MalformedMessage:
        return False
    return True


class HintSources:
    """Publishes a hint for each change of the gateway, on this node and over the bus."""

    def __init__(
        self, stream: HintStream, bus: ConsoleBus | None, approvals: ApprovalService
    ) -> None:
        self._stream = stream
        self._bus = bus
        self._approvals = approvals

    def connect(self, parts: ConsoleDependencies, cluster: LocalClusterNode | None) -> None:
        """Watch all sources."""
        parts.servers.watch(self._on_transition)
        parts.catalog.watch(self._on_catalog_changed)
        parts.approvals.watchers.append(self._on_approval_changed)
        parts.topics.open_listeners.append(self._on_topic_opened)
        parts.audit_log.commit_listeners.append(self._on_commit)
        parts.snapshot.watch(RecordKind.ASKS, self._on_approvals_changed)
        for kind, topic in _TOPIC_BY_RECORD.items():
            parts.snapshot.watch(kind, partial(self._on_record_changed, topic))
        # The store tells of new tokens, and the accounts tell what they read from it and learned.
        parts.snapshot.watch(RecordKind.ACCOUNTS, self._on_account_changed)
        parts.accounts.mode_listeners.append(self._on_account_changed)
        if cluster is not None:
            cluster.members.watch(self._on_node_changed)

    def _publish(self, hint: ChangeHint) -> None:
        self._stream.publish(hint)
        if self._bus is not None:
            self._bus.on_hint(hint)

    def _on_transition(self, transition: ServerTransition) -> None:
        self._publish(ChangeHint(HintTopic.SERVERS, transition.server))

    def _on_catalog_changed(self, server: str, kind: EntryKind) -> None:
        del kind
        self._publish(ChangeHint(HintTopic.TOOLS, server))

    def _on_approval_changed(self, request: ApprovalRequest) -> None:
        may_see = partial(self._approvals.may_see, request)
        self._publish(ChangeHint(HintTopic.APPROVALS, request.id, may_see))

    async def _on_topic_opened(self, topic: Topic) -> None:
        # The audit log has no chat messages, so its entries tell too little.
        topic.listeners.append(lambda _: self._publish(ChangeHint(HintTopic.TOPICS, topic.name)))

    def _on_approvals_changed(self, id: str) -> None:
        if not id:
            self._publish(ChangeHint(HintTopic.APPROVALS, "", _anyone))

    def _on_commit(self, records: Sequence[AuditRecord]) -> None:
        for topic in _topics_of(records) if records else ():
            self._publish(ChangeHint(topic))

    def _on_record_changed(self, topic: HintTopic, id: str) -> None:
        self._publish(ChangeHint(topic, id))

    def _on_account_changed(self, _: str) -> None:
        # People without a grant see their own accounts, so everybody may read them again.
        self._publish(ChangeHint(HintTopic.ACCOUNTS, "", _anyone))

    def _on_node_changed(self, node: str, is_there: bool) -> None:
        del is_there
        self._publish(ChangeHint(HintTopic.NODES, node))


def _anyone(_: Actor) -> bool:
    return True


def _topics_of(records: Sequence[AuditRecord]) -> set[HintTopic]:
    """Return the topics of entries that were just committed."""
    types = {record.type for record in records}
    topics = {HintTopic.AUDIT}
    if not types.isdisjoint(_TOPICS_TYPES):
        topics.add(HintTopic.TOPICS)
    if not types.isdisjoint(_LIVE_TYPES):
        topics.add(HintTopic.LIVE)
    return topics


def _publish_sample(sampler: TrafficSampler, stream: HintStream, sample: TrafficSample) -> None:
    stream.publish(ChangeHint(HintTopic.METRICS, sample=sampler.sum_at(sample.at)))
