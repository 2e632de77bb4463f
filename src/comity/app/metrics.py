"""Gauges of the gateway that combine several domains. `/metrics` reads them."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from comity.catalog.catalog import Catalog
from comity.http.client.pool import HttpConnectionPool
from comity.mcp.entries import EntryKind
from comity.mcp.mgp import ServerLifecycleState
from comity.policy.snapshot import PolicySnapshot
from comity.servers.service import ServerService
from comity.sessions.calls import ActiveCalls
from comity.sessions.sessions import SessionStore
from comity.telemetry.metrics import MetricFamily, Sample, label_of


@dataclass(frozen=True, slots=True)
class GatewayMetrics:
    """The parts that provide metrics. Each scrape reads their current values."""

    servers: ServerService
    catalog: Catalog
    sessions: SessionStore
    active_calls: ActiveCalls
    count_parked_calls: Callable[[], int]

    def __call__(self) -> list[MetricFamily]:
        return [
            *self.active_calls.update_metrics().families(),
            self._active_call_metrics(),
            MetricFamily(
                "comity_calls_waiting_for_input",
                "gauge",
                "Calls that wait for input without an open stream.",
                [((), self.count_parked_calls())],
            ),
            MetricFamily(
                "comity_sessions",
                "gauge",
                "Client sessions of MCP versions with a handshake.",
                [((), len(self.sessions))],
            ),
            *self._server_metrics(),
            *self._catalog_metrics(),
        ]

    def _active_call_metrics(self) -> MetricFamily:
        waiting: Counter[tuple[str, str]] = Counter()
        for call in self.active_calls:
            server = "" if call.counters is None else call.counters.server
            waiting[server, label_of(call.method)] += 1
        return MetricFamily(
            "comity_calls_active",
            "gauge",
            "Requests of clients that have no answer yet.",
            [((("server", s), ("method", m)), number) for (s, m), number in waiting.items()],
        )

    def _server_metrics(self) -> list[MetricFamily]:
        states = Counter(server.state for server in self.servers)
        up: list[Sample] = [
            ((("server", server.name),), server.state is ServerLifecycleState.CONNECTED)
            for server in self.servers
        ]
        restarts: list[Sample] = [
            ((("server", server.name),), server.restarts) for server in self.servers
        ]
        return [
            MetricFamily(
                "comity_servers",
                "gauge",
                "Configured servers, by their state.",
                [((("state", state),), states[state]) for state in ServerLifecycleState],
            ),
            MetricFamily(
                "comity_server_up", "gauge", "Whether calls to the server can be made.", up
            ),
            MetricFamily(
                "comity_server_restarts_total",
                "counter",
                "How often the server was started again.",
                restarts,
            ),
        ]

    def _catalog_metrics(self) -> list[MetricFamily]:
        offered: list[Sample] = []
        aside: list[Sample] = []
        for server in self.servers:
            for kind in EntryKind:
                labels = (("server", server.name), ("kind", str(kind)))
                if number := self.catalog.count(server.name, kind):
                    offered.append((labels, number))
                if unusable := self.catalog.quarantine_reasons(server.name, kind):
                    aside.append((labels, len(unusable)))
        return [
            MetricFamily(
                "comity_catalog_entries", "gauge", "Catalog entries that clients can see.", offered
            ),
            MetricFamily(
                "comity_catalog_entries_quarantined",
                "gauge",
                "Catalog entries that are hidden because they are invalid.",
                aside,
            ),
        ]


class SnapshotMetrics:
    """Metrics of the snapshot of the records on this node."""

    def __init__(self, snapshot: PolicySnapshot[Any]) -> None:
        self._snapshot = snapshot

    def __call__(self) -> list[MetricFamily]:
        snapshot = self._snapshot
        grants = sum(len(each.grants) for each in snapshot.grants.latest.subjects.values())
        counts = (
            (("kind", "grants"), grants),
            (("kind", "principals"), len(snapshot.parties)),
            (("kind", "keys"), len(snapshot.keys)),
        )
        # A snapshot that cannot become stale, or that is empty, has no age.
        ages = [((), snapshot.freshness.age)] if _has_age(snapshot) else []
        return [
            MetricFamily(
                "comity_policy_loaded",
                "gauge",
                "Whether permissions are loaded; if not, all calls are refused.",
                [((), int(snapshot.freshness.is_fresh))],
            ),
            MetricFamily(
                "comity_policy_age_seconds",
                "gauge",
                "Time since permissions were last read from the store.",
                ages,
            ),
            MetricFamily(
                "comity_policy_version",
                "gauge",
                "The version of the loaded permissions.",
                [((), snapshot.version)],
            ),
            MetricFamily(
                "comity_records",
                "gauge",
                "Loaded grants, principals and keys.",
                [((label,), count) for label, count in counts],
            ),
        ]


def _has_age(snapshot: PolicySnapshot[Any]) -> bool:
    return snapshot.freshness.has_max_age and isfinite(snapshot.freshness.age)


class PoolFigures:
    """Metrics of all connection pools, labelled with the purpose of each pool."""

    def __init__(self, pools: Mapping[str, HttpConnectionPool]) -> None:
        self._pools = pools

    def __call__(self) -> list[MetricFamily]:
        connections: list[Sample] = []
        waiting: list[Sample] = []
        for name, pool in self._pools.items():
            for origin, load in pool.loads().items():
                labels = (("pool", name), ("origin", str(origin)))
                connections += [
                    ((*labels, ("state", "busy")), load.busy),
                    ((*labels, ("state", "idle")), load.idle),
                    ((*labels, ("state", "opening")), load.opening),
                ]
                waiting.append((labels, load.waiting))
        return [
            MetricFamily(
                "comity_upstream_connections",
                "gauge",
                "Connections to HTTP servers, by what they are doing.",
                connections,
            ),
            MetricFamily(
                "comity_upstream_requests_waiting",
                "gauge",
                "Requests that wait for a connection to an HTTP server.",
                waiting,
            ),
        ]
