"""Builds and runs everything that live servers need, for the composition root."""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from comity.app.http import HttpApp
from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.app.upstreams import UpstreamRegistry
from comity.approvals.wiring import ApprovalComponents
from comity.audit.wiring import AuditLogComponents
from comity.catalog.token_counter import open_token_counter
from comity.catalog.toolbelt import ContextBudget, ToolbeltDefaults, ToolbeltService
from comity.cluster.connect import open_firsts
from comity.config.secret_files import read_secret
from comity.errors import Misconfigured, Unavailable
from comity.events.wiring import EventComponents
from comity.gateway.all_servers import AllServersEndpoint
from comity.http.api import ApiRouter
from comity.http.asgi import HOOKS
from comity.identity.authentication import Authenticator
from comity.inference.api import ModelsApi
from comity.inference.messages import to_text_content
from comity.inference.wiring import InferenceComponents
from comity.live.api import ChannelsApi, FeaturesApi, HooksDoor, PushesApi
from comity.live.channels.incoming_messages import ChannelMirror, IncomingMessages, TopicChat
from comity.live.channels.model import HOST_PARTY
from comity.live.channels.outgoing_messages import (
    ChannelPublisher,
    DeliveryLog,
    OutputObservers,
    OutputRouter,
    OutputTargets,
    TopicSpeakers,
)
from comity.live.channels.service import ChannelService
from comity.live.hooks.inference import HookedInference, InferenceHooks
from comity.live.host import LiveHost
from comity.live.inference import InferenceMethods
from comity.live.pushes.model import (
    MIN_SECRET_BYTES,
    PUSH,
    InboundWebhookConfig,
    WebhookKind,
    WebhookSignature,
)
from comity.live.pushes.service import (
    InboundWebhook,
    InboundWebhooks,
    PushService,
    PushSettings,
    PushTimeouts,
    PushWorker,
    build_effects,
)
from comity.live.scopes.service import ScopeElevation, ScopeService
from comity.live.settings import ChannelSettings, channels_of
from comity.live.state.api import StateApi
from comity.live.state.json_patch import JsonPatches
from comity.live.state.service import StateInterceptor, StateService
from comity.live.turns.api import TurnsApi
from comity.live.turns.model import TurnStarter
from comity.live.turns.runner import OWN_TOOLS, TurnDependencies, TurnTools
from comity.live.turns.service import TurnWorker
from comity.mcp.actors import LOCAL, Actor, kind_of
from comity.mcp.entries import EntryKind
from comity.mcp.mcpl import ELEVATE, FeatureUse
from comity.policy.wiring import PolicyComponents, ServerPolicyService
from comity.servers.service import ServerService
from comity.toolkit.resilience import RateLimit
from comity.topics.wiring import TopicComponents


class LiveDependencies(Protocol):
    """The parts of the gateway that live servers depend on."""

    @property
    def servers(self) -> ServerService: ...
    @property
    def all_servers_endpoint(self) -> AllServersEndpoint: ...
    @property
    def http_app(self) -> HttpApp: ...
    @property
    def upstream_registry(self) -> UpstreamRegistry: ...
    @property
    def authenticator(self) -> Authenticator: ...
    @property
    def snapshot(self) -> GatewaySnapshot: ...
    @property
    def server_policies(self) -> ServerPolicyService: ...
    @property
    def policy_components(self) -> PolicyComponents: ...
    @property
    def audit_log_components(self) -> AuditLogComponents: ...
    @property
    def approval_components(self) -> ApprovalComponents: ...
    @property
    def topic_components(self) -> TopicComponents: ...
    @property
    def event_components(self) -> EventComponents: ...
    @property
    def api(self) -> ApiRouter: ...
    @property
    def scopes(self) -> ScopeService: ...
    @property
    def models(self) -> InferenceComponents: ...


@dataclass(frozen=True, slots=True)
class LiveParts:
    """The dependencies that all parts of `comity.live` share."""

    settings: Settings
    dependencies: LiveDependencies
    output_router: OutputRouter

    @property
    def live_host(self) -> LiveHost:
        return self.dependencies.server_policies.live_host

    @property
    def hooks(self) -> InferenceHooks:
        return self.dependencies.server_policies.inference_hooks


log = logging.getLogger(__name__)

REMEMBERED: Final = timedelta(days=30)
"""How long the gateway remembers delivered messages, so that it does not deliver one twice."""

_PRUNE_INTERVAL_SECONDS: Final = 3_600.0


@asynccontextmanager
async def run_channels(live: LiveParts, turns: TurnStarter) -> AsyncGenerator[None]:
    """Deliver messages from and to channels until the context exits."""
    places = live.output_router
    mirroring = ChannelMirror(places)
    talking = TopicChat(places, mirroring, _rows(live.settings).chats, lambda: turns)
    IncomingMessages(places, mirroring, lambda: turns)
    live.dependencies.api.add(ChannelsApi(places).routes)
    forgetting = asyncio.ensure_future(_prune_delivery_log(places.delivery_log))
    try:
        yield
    finally:
        forgetting.cancel()
        for each in (talking, mirroring, *_stopped(places)):
            each.stop()


def make_output_router(settings: Settings, parts: LiveDependencies) -> OutputRouter:
    """Build the router that delivers the output of models."""
    rows, live_host, hide = (
        _rows(settings),
        parts.server_policies.live_host,
        parts.audit_log_components.redactor.hide,
    )
    channels = ChannelService(live_host)
    topics = TopicSpeakers(
        parts.topic_components.topics, _speakers(rows), asyncio.get_running_loop().time
    )
    observing = OutputObservers(live_host, hide, channels.names_of)
    ways = OutputTargets(channels, ChannelPublisher(channels, hide), observing, topics)
    once = DeliveryLog(parts.snapshot.records.incoming, secrets.token_hex(8))
    return OutputRouter(ways, once, rows.routes)


def _rows(settings: Settings) -> ChannelSettings:
    return channels_of(settings.channels)


def _stopped(
    output_router: OutputRouter,
) -> Iterable[ChannelService | OutputObservers | TopicSpeakers]:
    return (
        output_router.outputs.channels,
        output_router.outputs.observers,
        output_router.outputs.topics,
    )


def _speakers(rows: ChannelSettings) -> Callable[[str], Iterable[str]]:
    """Return a function that lists the gateway members of a topic."""
    found: dict[str, set[str]] = {}
    for talk in rows.chats:
        found.setdefault(talk.topic, set()).add(talk.principal)
    for route in rows.routes:
        named = [route.mirror, route.to.removeprefix("topic:") if ":" in route.to else ""]
        for topic in filter(None, named):
            found.setdefault(topic, set()).add(HOST_PARTY)
    return lambda topic: sorted(found.get(topic, ()))


async def _prune_delivery_log(delivery_log: DeliveryLog) -> None:
    """Delete old delivery records periodically."""
    while True:
        try:
            await delivery_log.store.forget(delivery_log.clock() - REMEMBERED)
        except Unavailable as error:
            log.info("Old records could not be deleted: %s", error)
        await asyncio.sleep(_PRUNE_INTERVAL_SECONDS)


MAX_SECRETS = 10


@asynccontextmanager
async def run_pushes(live: LiveParts, turns: TurnStarter) -> AsyncGenerator[None]:
    """Accept pushes, and run the effects of the pushes of all nodes, until the context exits."""
    hooks = [_hook(row) for row in live.settings.inbound_webhooks]
    pushes = make_pushes(live, turns)
    live.live_host.add_request_handler(PUSH, pushes.answer, FeatureUse.PUSH)
    if hooks:
        live.dependencies.http_app.add_endpoints({HOOKS: HooksDoor(InboundWebhooks(hooks, pushes))})
    doing, runner = pushes.worker, pushes.worker.runner
    live.dependencies.api.add(PushesApi(doing.store, doing.clock, runner.wakeup.set).routes)
    working = asyncio.ensure_future(runner.run())
    try:
        yield
    finally:
        live.dependencies.http_app.remove_endpoints([HOOKS])
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await runner.stop()


def make_pushes(live: LiveParts, turns: TurnStarter) -> PushService:
    settings, parts = live.settings, live.dependencies
    audit_log, cluster = parts.audit_log_components.audit_log, parts.upstream_registry.cluster
    told = (parts.event_components.events, parts.topic_components.topics)
    brought = build_effects(*told, lambda: turns, settings.turns.principal)
    times = PushTimeouts(retention=settings.limits.push_dedup_window)
    doing = PushWorker(parts.snapshot.records.pushes, brought, audit_log, audit_log.clock, times)
    firsts = None if cluster is None else open_firsts(cluster.bus)
    return PushService(settings.pushes, doing, audit_log, _options(settings), firsts=firsts)


def _options(settings: Settings) -> PushSettings:
    return PushSettings(
        RateLimit.setting_per_minute(settings.limits.push_rate),
        RateLimit.setting_per_minute(settings.limits.push_rate_per_feature),
        settings.limits.max_push_bytes,
        settings.limits.max_queued_pushes,
        is_durable=bool(settings.store.url),
    )


def _hook(row: InboundWebhookConfig) -> InboundWebhook:
    """Return a webhook with its secrets. Raises Misconfigured if they cannot be read."""
    written = read_secret(row.secret_file, f"the secret_file of the inbound webhook {row.name!r}")
    secrets = tuple(each.strip() for each in written.splitlines() if each.strip())
    if not 0 < len(secrets) <= MAX_SECRETS or min(map(len, secrets)) < MIN_SECRET_BYTES:
        raise Misconfigured(
            f"the secret_file of the inbound webhook {row.name!r} must hold 1 to {MAX_SECRETS} "
            "secrets, each in "
            f"a line of its own, with {MIN_SECRET_BYTES} characters at least"
        )
    header = row.header.lower() if row.kind is WebhookKind.PLAIN else ""
    signing = WebhookSignature(row.kind, secrets, header, row.algorithm)
    return InboundWebhook(row.name, signing, row.route, row.id, row.content)


def enable_scope_elevation(live: LiveParts) -> None:
    """Enable `scope/elevate`, and the API by which operators enable feature sets."""
    parts, live_host = live.dependencies, live.live_host
    audit_log_components, approval_components = (
        parts.audit_log_components,
        parts.approval_components,
    )
    live_host.handlers.interceptors.append(parts.scopes)
    elevating = ScopeElevation(
        approval_components.approvals,
        audit_log_components.audit_log,
        audit_log_components.redact,
        approval_components.pending_calls.key,
        channel_of=live.output_router.outputs.channels.find_by_label,
    )
    live_host.add_request_handler(ELEVATE, elevating.answer)
    parts.api.add(FeaturesApi(live_host, parts.policy_components.administration).routes)


STATE_PRUNE_SECONDS: Final = 3_600.0


@asynccontextmanager
async def keep_state(live: LiveParts) -> AsyncGenerator[None]:
    """Add state to calls, and serve it to operators, until the context exits."""
    parts, live_host = live.dependencies, live.live_host
    states = StateService(parts.snapshot.records.states, JsonPatches(), live.settings.state)
    catalog = parts.all_servers_endpoint.call_gate.catalog

    def definition_of(server: str, tool: str) -> bytes | None:
        offer = catalog.find_own(server, EntryKind.TOOL, tool)
        return None if offer is None else offer.definition

    live_host.handlers.interceptors.append(StateInterceptor(states, live_host.audit, definition_of))
    parts.api.add(StateApi(states, live_host, parts.policy_components.administration).routes)
    check_task = asyncio.ensure_future(_prune_states(states))
    try:
        yield
    finally:
        check_task.cancel()
        await asyncio.gather(check_task, return_exceptions=True)


async def _prune_states(states: StateService) -> None:
    """Delete outdated checkpoints periodically, also when no new ones arrive."""
    while True:
        try:
            await states.prune_all()
        except Unavailable as error:
            log.info("Server state could not be pruned: %s", error)
        await asyncio.sleep(STATE_PRUNE_SECONDS)


_START_POLL_SECONDS: Final = 0.05


@asynccontextmanager
async def run_turns(live: LiveParts) -> AsyncGenerator[TurnWorker]:
    """Run turns until the context exits. Open turns are left for other nodes or the next start."""
    taker = make_turns(live)
    judge = live.dependencies.snapshot.grants
    live.dependencies.api.add(TurnsApi(taker, judge, live.settings.turns.principal).routes)
    working = asyncio.ensure_future(_work(live, taker))
    try:
        yield taker
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await taker.stop()


async def _work(live: LiveParts, taker: TurnWorker) -> None:
    servers, audit_log = live.dependencies.servers, live.dependencies.audit_log_components.audit_log
    # A server that is still starting would miss its hooks.
    while not servers.is_started:  # noqa: ASYNC110 (nobody tells of it)
        await asyncio.sleep(_START_POLL_SECONDS)
    await servers.wait_for_first_starts(live.settings.limits.start_timeout)
    # The node name of an audit chain is unique to one process, so turns can be claimed under it.
    await audit_log.flush()
    if audit_log.head is not None:
        await taker.runner.run(audit_log.head.node)


def make_turns(live: LiveParts) -> TurnWorker:
    parts, bounds = live.dependencies, live.settings.turns
    company = TurnDependencies(
        parts.snapshot.records.topic_messages,
        live.hooks.before,
        live.hooks.after,
        TurnTools(parts.all_servers_endpoint, _make_toolbelts(live), bounds),
        live.hooks.turn_depth,
        parts.audit_log_components.redactor.hide,
        actor_by(parts.authenticator),
        lambda: parts.models.engine,
        lambda: live.output_router,
        bounds,
        to_text_content(bounds.system),
    )
    audit_log = parts.audit_log_components.audit_log
    return TurnWorker(company, audit_log, clock=audit_log.clock)


def _make_toolbelts(live: LiveParts) -> ToolbeltService:
    """Build the tool sets of models, for when not all tools fit: pinned and recently used."""
    settings = live.settings
    most = settings.turns.max_tool_tokens
    own = sum(map(len, OWN_TOOLS)) // 3
    budget = ContextBudget(most, max(most // 4, min(own, most)), 0, most // 2)
    outfit = ToolbeltDefaults(
        budget,
        settings.discovery.pinned,
        OWN_TOOLS,
        settings.limits.session_idle_timeout.total_seconds(),
    )
    now = asyncio.get_running_loop().time
    return ToolbeltService(
        live.dependencies.all_servers_endpoint.call_gate,
        open_token_counter(os.environ),
        now,
        outfit,
    )


def actor_by(identity: Authenticator) -> Callable[[str], Actor | None]:
    """Return a function that finds the actor for a principal. It returns None if access ended."""

    def actor_of(party: str) -> Actor | None:
        if party == LOCAL.party:
            return LOCAL if identity.is_local else None
        actor = identity.find_actor(party) or Actor(party, kind_of(party), "turn")
        return actor if identity.stands(actor) else None

    return actor_of


@asynccontextmanager
async def run_live(settings: Settings, parts: LiveDependencies) -> AsyncGenerator[None]:
    """Run everything that live servers need until the context exits.

    The first to start ends last.
    """
    live = LiveParts(settings, parts, make_output_router(settings, parts))
    enable_scope_elevation(live)
    hide = parts.audit_log_components.redactor.hide
    hooked = HookedInference(parts.models.engine, live.hooks, hide, settings.turns.max_chain)
    InferenceMethods(hooked, live.hooks.active).register_methods(live.live_host)
    parts.api.add(ModelsApi(parts.models.engine, parts.models.default).routes)
    async with (
        keep_state(live),
        run_turns(live) as turns,
        run_channels(live, turns),
        run_pushes(live, turns),
    ):
        try:
            yield
        finally:
            live.live_host.stop()
