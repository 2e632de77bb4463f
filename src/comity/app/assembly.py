"""Every part, chosen by the settings and joined with the others."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from comity.adapters.schemas import Schemas
from comity.adapters.telemetry import is_asked_for, open_tracer
from comity.adapters.telemetry_pools import PoolFigures
from comity.adapters.telemetry_process import Process
from comity.app.asking import Asking, make_asking
from comity.app.auditing import audited
from comity.app.caring import Caring
from comity.app.clustering import Joined, make_cluster
from comity.app.conversing import Conversing, converse
from comity.app.discovering import have_tools_found
from comity.app.eventing import Eventing, tell_events
from comity.app.finding import make_finder
from comity.app.governing import Governance, govern, grants_rooms, suggestions_rooms
from comity.app.inspecting import Inspecting, RulesOf
from comity.app.journaling import Journaling, journaled
from comity.app.limiting import Limiting
from comity.app.live import lively
from comity.app.living import let_live
from comity.app.meaning import by_meaning
from comity.app.mounting import mount
from comity.app.newcomers import receive_newcomers
from comity.app.questioning import have_questions_asked
from comity.app.reaching import Pools, limits_of, make_pools
from comity.app.recognising import (
    make_auth_member,
    make_identity,
    make_reception,
    make_task_names,
    make_tokens,
)
from comity.app.recording import last_use_written, make_register, recorded, rooms_of
from comity.app.registering import registry_doors
from comity.app.residents import Residents, make_doors
from comity.app.retelling import journal_rooms
from comity.app.streaming import have_calls_streamed
from comity.app.webhooks import webhooked
from comity.config import Settings
from comity.kernel.bridge import Bridge
from comity.kernel.catalog import Catalog, Kind
from comity.kernel.figures import Figures
from comity.kernel.forwarding import OneServer
from comity.kernel.gate import Gate
from comity.kernel.grants import Judge
from comity.kernel.identity import Identity, Register
from comity.kernel.known import KnownFigures
from comity.kernel.parking import Parking
from comity.kernel.server_limits import ServerLimits
from comity.kernel.servers import Servers
from comity.kernel.sessions import Sessions
from comity.kernel.shares import Shares
from comity.kernel.snapshot import Snapshot
from comity.kernel.subscribing import Subscriptions
from comity.kernel.switchboard import AllServers
from comity.kernel.tallies import Tallies
from comity.kernel.underway import Underway, tend
from comity.ports import Tracer
from comity.ports.finding import Similarity
from comity.rules.forwarded import TrustedProxies
from comity.surfaces.asked import Room
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.doorway import Doorway
from comity.surfaces.gateway import Gateway
from comity.surfaces.operator_api import OperatorApi, Overseen
from comity.surfaces.probes import Probes
from comity.surfaces.search_api import SearchApi
from comity.surfaces.tools_api import ToolsApi
from comity.wire.errors import Misconfigured

log = logging.getLogger(__name__)

_NOWHERE: Mapping[str, str] = {}
LOOK_EVERY_SECONDS = 1.0
PATIENCE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a surface is opened on."""

    servers: Servers
    catalog: Catalog
    sessions: Sessions
    underway: Underway
    parking: Parking
    everything: AllServers
    gateway: Gateway
    residents: Residents
    identity: Identity
    auth: AuthMember
    snapshot: Snapshot
    caring: Caring
    governance: Governance
    inspecting: Inspecting
    journaling: Journaling
    asking: Asking
    conversing: Conversing
    probes: Probes
    eventing: Eventing
    # What operators find under /api, by its name.
    rooms: dict[str, Room]

    def end_by(self, end: Callable[[], None]) -> None:
        """How this process ends, where somebody may ask for that."""
        if self.everything.presence.own is not None:
            self.everything.presence.own.end = end

    def end_streams(self) -> None:
        """Let go whoever would read on for ever."""
        self.everything.presence.leave()
        self.sessions.end_streams()
        self.asking.end_streams()


@contextlib.asynccontextmanager
async def assembled(
    settings: Settings, register: Register | None = None, operator_token: str = ""
) -> AsyncGenerator[Parts]:
    """Every part joined and every server starting; all of it ended on the way out.

    In local mode, the holder of `operator_token` is an operator.
    """
    async with recorded(settings) as snapshot:
        register = register or make_register(settings, snapshot)
        identity = make_identity(settings, register, make_tokens(settings), operator_token)
        async with (
            last_use_written(snapshot, identity.used),
            journaled(settings, snapshot, identity.pepper) as journaling,
            by_meaning(settings) as similarity,
            _started(settings, identity, snapshot, journaling, similarity) as parts,
            webhooked(settings, parts),
        ):
            yield parts


@contextlib.asynccontextmanager
async def _started(
    settings: Settings,
    identity: Identity,
    snapshot: Snapshot,
    journaling: Journaling,
    similarity: Similarity | None,
) -> AsyncGenerator[Parts]:
    pools = make_pools(settings)
    schemas = Schemas()
    parts = _join(settings, pools, schemas, identity, snapshot, journaling)
    parts.everything.tasks = parts.sessions.tasks = make_task_names(identity)
    cluster = parts.residents.cluster = make_cluster(settings, identity.pepper)
    topics = parts.conversing.topics
    finder = make_finder(parts.everything.gate, parts.servers, parts.caring.tools, similarity)
    parts.rooms.update(SearchApi(finder).rooms)
    governed = (parts.caring, parts.governance, journaling)
    requesting = have_tools_found(settings, finder, parts.everything, *governed)
    mounting = mount(settings, topics, parts.asking, parts.residents, journaling, identity)
    newcomers = receive_newcomers(parts.residents, parts.inspecting, parts.asking, parts.everything)
    requesting.creation = newcomers.creation
    parts.eventing.hear(parts.residents, requesting)
    looks = [*_looks(parts), mounting.look, newcomers.look]
    if cluster is not None:
        cluster.join(_joined(parts))
        looks.append(cluster.look)
    parts.residents.admit_all(settings.servers)
    tending = asyncio.ensure_future(tend(looks, LOOK_EVERY_SECONDS, PATIENCE_SECONDS))
    try:
        joined = contextlib.nullcontext() if cluster is None else cluster.running()
        async with joined, lively(settings, parts, parts.caring.live):
            parts.servers.start()
            await newcomers.open()
            try:
                yield parts
            finally:
                newcomers.stop()
                mounting.stop()
                parts.asking.stop()
                await parts.eventing.stop()
                await parts.sessions.close()
                await parts.servers.stop()
    finally:
        tending.cancel()
        finder.stop()
        parts.caring.tools.stop()
        await newcomers.close()
        await _closed(parts, pools, schemas)


def _looks(parts: Parts) -> list[Callable[[float], None]]:
    """Who looks around, again and again, for what has lasted too long."""
    limits = ServerLimits(parts.servers, parts.underway)
    waiting = (parts.underway.look, parts.sessions.look, parts.parking.look)
    kept = (parts.caring.look, parts.asking.approvals.look, parts.conversing.look)
    return [*waiting, *kept, limits.look]


async def _closed(parts: Parts, pools: Pools, schemas: Schemas) -> None:
    """What reaches outside is let go last."""
    await pools.close()
    await schemas.close()
    await parts.inspecting.close()
    if parts.underway.tracer is not None:
        await parts.underway.tracer.close()


def _join(
    settings: Settings,
    pools: Pools,
    schemas: Schemas,
    identity: Identity,
    snapshot: Snapshot,
    journaling: Journaling,
) -> Parts:
    catalog, (sessions, parking) = Catalog(), _waiting(settings)
    caring, underway = Caring(settings, catalog, snapshot), _underway(settings, catalog, sessions)
    servers = Servers(catalog, schemas, caring.tools)
    about, grants = {"name": "comity", "version": version("comity")}, snapshot.grants
    limiting, inspecting, gate = _judging(settings, catalog, caring, snapshot)
    asking = make_asking(settings, snapshot, journaling.attach(gate, underway), gate)
    bridge, subscriptions = Bridge(catalog, parking), Subscriptions(servers, gate)
    everything = AllServers(servers, gate, underway, bridge, subscriptions, about)
    descriptions: dict[str, Mapping[str, str]] = {}
    underway.tracer = _tracer(settings, about["version"], descriptions)
    seen = (servers, catalog, sessions, underway, about, descriptions.__getitem__, caring.needs)
    auth = make_auth_member(settings, identity)
    doors = make_doors("", everything, sessions, limits_of(settings), auth)
    streamed = have_calls_streamed(settings, caring, everything).families
    told = Figures(servers, catalog, sessions, underway, parking.__len__), limiting, streamed
    told = (*told, *_others(pools, snapshot))
    probes = Probes(servers, told, gate.knows, lambda: snapshot.problem)
    doors |= probes.doors | registry_doors(settings, servers, everything, gate, underway, auth)
    reception = make_reception(settings, identity, snapshot)
    governance = govern(snapshot, everything, subscriptions, limiting)
    administration = governance.administration
    have_questions_asked(settings, caring, asking, journaling, administration)
    audit = audited(journaling, identity, servers, caring, governance, everything)
    asking.open(identity, administration, reception)
    conversing = converse(settings, snapshot, identity, journaling.journal, administration)
    rooms = rooms_of(snapshot, identity.pepper, audit.recorder) | asking.rooms
    rooms |= _rooms_of_tools(servers, gate, grants, caring, governance) | conversing.rooms
    rooms |= _rooms_of_grants(settings, catalog, caring, governance, journaling)
    doors |= asking.doors | conversing.doors
    said = let_live(settings, everything, sessions, administration, journaling.journal)
    gateway = Gateway(_way(settings), doors, OperatorApi(Overseen(*seen, said), rooms), reception)
    residents = Residents(
        *(settings, servers, sessions, subscriptions, gateway, pools),
        lambda server: OneServer(server, gate, underway, bridge, subscriptions),
        *(caring, auth, descriptions),
    )
    return Parts(
        *(servers, catalog, sessions, underway, parking, everything, gateway, residents),
        *(identity, auth, snapshot, caring, governance, inspecting, journaling, asking),
        *(conversing, probes, tell_events(journaling, audit, servers, grants, everything, asking)),
        rooms,
    )


def _waiting(settings: Settings) -> tuple[Sessions, Parking]:
    """What clients keep here between their requests."""
    now = asyncio.get_running_loop().time
    idle, each = settings.idle_session.total_seconds(), settings.max_sessions_per_principal
    sessions = Sessions(now, settings.max_sessions, idle, each)
    sessions.streams.each = settings.max_streams_per_principal
    parked = settings.max_parked, settings.parked_deadline, settings.max_parked_per_principal
    return sessions, Parking(now, *parked)


def _judging(
    settings: Settings, catalog: Catalog, caring: Caring, snapshot: Snapshot
) -> tuple[Limiting, Inspecting, Gate]:
    """By what every call is judged."""
    limiting = Limiting(settings, catalog, caring.policy)
    inspecting = Inspecting(RulesOf(caring.policy, caring.tools.standing), settings)
    gate = inspecting.gate(catalog, snapshot.grants, caring.tools, limiting.limits)
    return limiting, inspecting, limiting.attach(gate)


def _way(settings: Settings) -> Doorway:
    proxies = TrustedProxies(settings.trusted_proxies)
    return Doorway(settings.allowed_hosts, settings.allowed_origins, proxies)


def _joined(parts: Parts) -> Joined:
    return Joined(
        *(parts.servers, parts.catalog, parts.sessions, parts.parking),
        *(parts.gateway, parts.auth, parts.probes, parts.conversing.topics, parts.eventing),
    )


def _underway(settings: Settings, catalog: Catalog, sessions: Sessions) -> Underway:
    deadline, cap = settings.call_deadline.total_seconds(), settings.call_cap.total_seconds()
    setting = "max_requests_per_principal"
    requests = Shares("requests in flight", setting, settings.max_requests_per_principal)
    tallies = Tallies(lambda server, tool: catalog.has(server, Kind.TOOL, tool))
    # The loop's own clock stands still between two rounds, too coarse for how long a call took.
    return Underway(time.monotonic, deadline, cap, tallies, requests, sessions.streams)


def _others(pools: Pools, snapshot: Snapshot) -> tuple[PoolFigures, KnownFigures, Process]:
    named = {"calls": pools.calls, "streams": pools.streams}
    return PoolFigures(named), KnownFigures(snapshot), Process(version("comity"))


def _rooms_of_tools(
    servers: Servers, gate: Gate, judge: Judge, caring: Caring, governance: Governance
) -> dict[str, Room]:
    """What operators read of tools, and decide about them."""
    tools = ToolsApi(servers, gate, judge).rooms
    return {**tools, **caring.rooms(servers, governance.administration)}


def _rooms_of_grants(
    settings: Settings,
    catalog: Catalog,
    caring: Caring,
    governance: Governance,
    journaling: Journaling,
) -> dict[str, Room]:
    """What operators read of grants and of what happened, and decide by it."""
    rooms = grants_rooms(governance, catalog, caring.tools)
    rooms |= journal_rooms(governance.snapshot.records, journaling)
    return rooms | suggestions_rooms(
        governance, catalog, caring.tools, journaling.journal, settings
    )


def _tracer(
    settings: Settings, version: str, descriptions: Mapping[str, Mapping[str, str]]
) -> Tracer | None:
    if not settings.traces and not is_asked_for(os.environ):
        return None
    try:
        return open_tracer(version, lambda name: descriptions.get(name, _NOWHERE), os.environ)
    except Misconfigured as error:
        # Whole clusters set OpenTelemetry's variables: that must not keep a gateway from starting.
        log.warning("Telemetry is off: %s", error)
        return None
