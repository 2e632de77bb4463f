"""How busy the connections to HTTP servers are, by origin: only what an operator configured."""

from collections.abc import Mapping

from comity.adapters.upstream.pool import Pool
from comity.wire.exposition import Family, Sample


class PoolFigures:
    """The figures of all pools, each under the name of what it is for."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools

    def __call__(self) -> list[Family]:
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
            Family(
                "comity_upstream_connections",
                "gauge",
                "Connections to HTTP servers, by what they are doing.",
                connections,
            ),
            Family(
                "comity_upstream_requests_waiting",
                "gauge",
                "Requests that wait for a connection to an HTTP server.",
                waiting,
            ),
        ]
