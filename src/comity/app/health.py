"""HTTP endpoints for monitoring: liveness, readiness and metrics.

`/health` only says that the process answers. A supervisor that restarts Comity by it must not do so
because a server behind it is broken. `/ready` says that there is something to use.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final
from urllib.parse import parse_qs

from comity.app.authentication import HEALTH_PATHS, METRICS_PATH, READY_PATHS
from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.http import asgi
from comity.http.asgi import ACTOR, HttpEndpoint, Receive, Scope, Send
from comity.http.connection import GUARD, ListenerGuard
from comity.mcp import jsonrpc
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.mgp import ServerLifecycleState
from comity.servers.service import ServerService
from comity.servers.supervisor import UpstreamServer
from comity.telemetry.metrics import CONTENT_TYPE, MetricFamily, encode_metrics

type Source = Callable[[], Iterable[MetricFamily]]
type Knows = Callable[[Actor, str], bool]
"""Tells whether an actor may know that a server exists."""

MAX_QUERY_FIELDS: Final = 8
_NO_STORE_HEADERS: Final = ((b"cache-control", b"no-store"),)
_ALLOW_HEADERS: Final = ((b"allow", b"GET, HEAD"),)


class ProbeEndpoints:
    """Handlers of `/health`, `/ready` and `/metrics`.

    Kubernetes and many programs know the first two as `/healthz`, `/livez` and `/readyz`.
    """

    def __init__(
        self,
        servers: ServerService,
        metric_sources: Sequence[Source],
        may_know_server: Knows,
        policy_problem: Callable[[], str] = str,
        *,
        isolation_reason: Callable[[], str] = str,
        node_counts: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._servers = servers
        self._may_know_server = may_know_server
        self._metric_sources = metric_sources
        # The reason why this node cannot authorize calls, or empty while it can.
        self.policy_problem = policy_problem
        # The reason why this node cannot reach the others, or empty while it can or has no cluster.
        self.isolation_reason = isolation_reason
        # The number of nodes, or nothing without a cluster.
        self.node_counts = node_counts
        self._was_ready = False

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return {
            **dict.fromkeys(HEALTH_PATHS, self.health),
            **dict.fromkeys(READY_PATHS, self.ready),
            METRICS_PATH: self.metrics,
        }

    async def health(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        await asgi.send_json(send, 200, b'{"status":"ok"}')

    async def ready(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Answer 200 once Comity tried every server; with `strict`, while all or the named are
        connected.

        A server that a later change of the configuration adds does not revoke readiness. The answer
        names no server and no reason, since a reason may contain a server's secrets.

        A node that cannot reach the others is not ready, unless the query asks for `local` only. A
        node that misses one other node says so and is ready, because it serves without it. A node
        whose store does not answer is not ready, even while it serves from its cache. Another node
        may reach the store, and this one will soon refuse every call.
        """
        asked = _parse_query(scope.get("query_string", b""))
        servers = self._servers_to_report(asked.get("server", []), scope.get(ACTOR, ANONYMOUS))
        tried = all(server.first_start_tried.is_set() for server in servers)
        connected = all(server.state is ServerLifecycleState.CONNECTED for server in servers)
        strict = "strict" in asked or "server" in asked
        if not strict:
            tried = self._was_ready = tried or self._was_ready
        status = "starting" if not tried else "degraded" if strict and not connected else "ready"
        cut_off = self.isolation_reason()
        if cut_off and status == "ready" and "local" not in asked:
            status = "cut off"
        status = self.policy_problem() or status
        body: dict[str, object] = {"status": status}
        body["servers"] = Counter(server.state for server in servers)
        if nodes := self.node_counts():
            body["cluster"] = {"status": "joined", **nodes}
        if cut_off:
            body["cluster"] = {"status": "cut off", "reason": cut_off}
        code = 200 if status == "ready" else 503
        await asgi.send_json(send, code, jsonrpc.to_json(body), _NO_STORE_HEADERS)

    async def metrics(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Send the metrics in chunks, so that calls can run between two chunks."""
        if scope["method"] not in ("GET", "HEAD"):
            await asgi.send_empty(send, 405, _ALLOW_HEADERS)
            return
        guard: ListenerGuard | None = scope.get("state", {}).get(GUARD)
        seen = () if guard is None else guard.families()
        head = [(b"content-type", CONTENT_TYPE), *_NO_STORE_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for piece in encode_metrics(chain(seen, *(source() for source in self._metric_sources))):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    def _servers_to_report(self, names: list[str], actor: Actor) -> list[UpstreamServer]:
        """Return the servers of these names, or all, without those that the actor may not know."""
        if not names:
            return list(self._servers)
        known = [
            self._servers.get(name) if self._may_know_server(actor, name) else None
            for name in names
        ]
        servers = [server for server in known if server is not None]
        if len(servers) != len(names):
            raise MalformedMessage("no server of that name is configured", NOTHING_HERE)
        return servers


def _parse_query(query_string: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(
            query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS
        )
    except ValueError:
        raise MalformedMessage("too much is asked at once", INVALID_PARAMS) from None
