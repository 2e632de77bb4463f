"""What the gateway is doing now, in figures: servers, offers, sessions, calls under way."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from comity.kernel.catalog import Catalog, Kind
from comity.kernel.servers import Servers
from comity.kernel.sessions import Sessions
from comity.kernel.tallies import label_of
from comity.kernel.underway import Underway
from comity.wire.exposition import Family, Sample
from comity.wire.lifecycle import State


@dataclass(frozen=True, slots=True)
class Figures:
    """The parts whose figures are told; each is looked at when somebody asks."""

    servers: Servers
    catalog: Catalog
    sessions: Sessions
    underway: Underway
    parked: Callable[[], int]

    def __call__(self) -> list[Family]:
        return [
            *self.underway.count().families(),
            self._underway(),
            Family(
                "comity_calls_parked",
                "gauge",
                "Calls that wait for somebody's answer while no stream is held for them.",
                [((), self.parked())],
            ),
            Family(
                "comity_sessions",
                "gauge",
                "Sessions of clients of the handshake era.",
                [((), len(self.sessions))],
            ),
            *self._servers(),
            *self._offers(),
        ]

    def _underway(self) -> Family:
        waiting: Counter[tuple[str, str]] = Counter()
        for call in self.underway:
            server = "" if call.counted is None else call.counted.server
            waiting[server, label_of(call.method)] += 1
        return Family(
            "comity_calls_underway",
            "gauge",
            "Requests of clients that have no answer yet.",
            [((("server", s), ("method", m)), number) for (s, m), number in waiting.items()],
        )

    def _servers(self) -> list[Family]:
        states = Counter(server.state for server in self.servers)
        up: list[Sample] = [
            ((("server", server.name),), server.state is State.CONNECTED) for server in self.servers
        ]
        restarts: list[Sample] = [
            ((("server", server.name),), server.restarts) for server in self.servers
        ]
        return [
            Family(
                "comity_servers",
                "gauge",
                "Configured servers, by their state.",
                [((("state", state),), states[state]) for state in State],
            ),
            Family("comity_server_up", "gauge", "Whether calls to the server can be made.", up),
            Family(
                "comity_server_restarts_total",
                "counter",
                "How often the server was started again.",
                restarts,
            ),
        ]

    def _offers(self) -> list[Family]:
        offered: list[Sample] = []
        aside: list[Sample] = []
        for server in self.servers:
            for kind in Kind:
                labels = (("server", server.name), ("kind", str(kind)))
                if number := self.catalog.count(server.name, kind):
                    offered.append((labels, number))
                if unusable := self.catalog.quarantined(server.name, kind):
                    aside.append((labels, len(unusable)))
        return [
            Family("comity_offers", "gauge", "What servers offer and clients are shown.", offered),
            Family(
                "comity_offers_set_aside",
                "gauge",
                "What servers offer and clients are not shown, because it is unusable.",
                aside,
            ),
        ]
