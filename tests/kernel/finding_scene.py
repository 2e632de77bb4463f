"""A catalog with tools to be found, grants that change, and vectors that a test makes up."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.certainty import Certainty
from comity.kernel.finding import Finder, Findings
from comity.kernel.gate import Gate
from comity.kernel.grants import Grants
from comity.kernel.tool_index import ServerWords
from comity.ports.finding import Nearness, Searchable
from comity.rules.access import Access
from comity.rules.names import public_name
from comity.rules.search import Query, Strategy
from comity.wire.errors import Unavailable
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Actor

ME = Actor("agent:me")
TOOLS: dict[str, dict[str, str]] = {
    "files": {
        "read_file": "Read what a file holds, by its path.",
        "write_file": "Write text to a file.",
        "search_files": "Find files whose names fit a pattern.",
    },
    "mail": {
        "send_mail": "Send an email to somebody.",
        "list_mails": "List the mails of an inbox.",
    },
    "weather": {"get_forecast": "Give the weather forecast for a city."},
}


def offer(server: str, name: str, description: str = "", **more: Any) -> Offer:
    definition = {"name": public_name(server, name), "description": description, **more}
    key = public_name(server, name)
    return Offer(key, server, name, json.dumps(definition).encode())


@dataclass
class Clock:
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, time: timedelta) -> None:
        self.now += time


@dataclass
class Vectors:
    """Meanings as a test says them: by the name of a tool, how near it is to any query."""

    near_by_name: dict[str, float]
    complete: bool = True
    broken: bool = False
    servers: dict[str, float] = field(default_factory=dict[str, float])
    held: dict[int, Searchable] = field(default_factory=dict[int, Searchable])

    @property
    def name(self) -> str:
        return "made-up"

    @property
    def is_complete(self) -> bool:
        return self.complete

    def put(self, slot: int, tool: Searchable) -> None:
        assert slot not in self.held
        self.held[slot] = tool

    def drop(self, slot: int) -> None:
        del self.held[slot]

    async def near(
        self, query: str, seen: bytes | None, most: int, also: Sequence[int] = ()
    ) -> Nearness:
        if self.broken:
            raise Unavailable("no model")
        known = {
            slot: self.near_by_name[tool.name]
            for slot, tool in self.held.items()
            if tool.name in self.near_by_name and (seen is None or seen[slot])
        }
        best = sorted(known.items(), key=lambda item: -item[1])[:most]
        least = min(known.values(), default=0.0)
        return Nearness(best, [known.get(slot) for slot in also], least, self.servers)

    async def close(self) -> None: ...


class Scene:
    """A finder before three servers, and who may call what of them."""

    def __init__(
        self,
        *grants: Grant,
        tools: Any = None,
        vectors: Vectors | None = None,
        about: Mapping[str, ServerWords] | None = None,
        status: Mapping[str, str] | None = None,
        certainty: Certainty | None = None,
    ) -> None:
        self.catalog = Catalog()
        self.clock = Clock()
        self.grants = Grants(Access.of(grants), self.clock, certainty)
        self.gate = Gate(self.catalog, self.grants, tools)
        self.vectors = vectors
        self.about = dict(about or {})
        states = status or {}
        self.finder = Finder(
            self.gate,
            vectors,
            lambda server: self.about.get(server, ServerWords(server)),
            lambda server: states.get(server, "connected"),
        )
        for server, offered in TOOLS.items():
            self.offer(server, **offered)

    def offer(self, server: str, **tools: str) -> None:
        offers = [offer(server, name, about) for name, about in tools.items()]
        self.catalog.put(server, Kind.TOOL, offers)

    def grant(self, *grants: Grant) -> None:
        self.grants.replace(Access.of(grants))

    async def find(self, text: str, actor: Actor = ME, **more: Any) -> Findings:
        return await self.finder.find(actor, Query(text, **more))

    async def names(self, text: str, actor: Actor = ME, **more: Any) -> list[str]:
        return [found.offer.name for found in (await self.find(text, actor, **more)).found]

    async def words(self, text: str, **more: Any) -> list[str]:
        return await self.names(text, strategy=Strategy.KEYWORD, **more)


def allowed(target: str, party: str = ME.party, **more: Any) -> Grant:
    return Grant(party, CALL, target, Effect.ALLOW, **more)


def denied(target: str, party: str = ME.party, **more: Any) -> Grant:
    return Grant(party, CALL, target, Effect.DENY, **more)
