"""Every offer of every server, in one stable order, with names no two of them share.

Each server's offers of a kind stand on one shelf, sorted; a change replaces that shelf alone. Pages
walk the shelves in the order of server ids, so a cursor is a place in an order that does not move.
"""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from comity.rules import templates
from comity.rules.names import SEPARATOR
from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

PAGE_ITEMS = 1000
PAGE_BYTES = 2 * 1024 * 1024
NOT_OURS = "a cursor that was not given out here"


class Kind(StrEnum):
    """What can be offered, by the member of the list result that holds it."""

    TOOL = "tools"
    PROMPT = "prompts"
    RESOURCE = "resources"
    TEMPLATE = "resourceTemplates"


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing on a shelf: how clients name it, how its server does, and its definition."""

    key: str
    server: str
    name: str
    definition: bytes


@dataclass(slots=True)
class Shelf:
    """One server's offers of one kind."""

    keys: list[str] = field(default_factory=list[str])
    offers: list[Offer] = field(default_factory=list[Offer])
    quarantined: Mapping[str, str] = field(default_factory=dict[str, str])


type Place = tuple[str, Kind]


class Catalog:
    """The shelves of all servers, and where on them a name is found."""

    def __init__(self) -> None:
        self._shelves: dict[Place, Shelf] = {}
        self._servers: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self._public: dict[tuple[Kind, str], Offer] = {}
        self._bare: dict[tuple[Kind, str], dict[str, Offer]] = {}
        self._templates: templates.Index[Offer] = templates.Index()
        self._watchers: list[Callable[[str, Kind], None]] = []

    def watch(self, watcher: Callable[[str, Kind], None]) -> None:
        """Have a watcher told of each shelf that changed."""
        self._watchers.append(watcher)

    def put(
        self,
        server: str,
        kind: Kind,
        offers: Sequence[Offer],
        quarantined: Mapping[str, str] | None = None,
    ) -> bool:
        """Replace one shelf; whether anything on it is new."""
        ordered = sorted(offers, key=lambda offer: offer.key)
        old = self._shelves.get((server, kind), Shelf())
        if old.offers == ordered and (server, kind) in self._shelves:
            old.quarantined = quarantined or {}
            return False
        for offer in old.offers:
            self._forget(kind, offer)
        for offer in ordered:
            self._learn(kind, offer)
        keys = [offer.key for offer in ordered]
        self._shelves[server, kind] = Shelf(keys, ordered, quarantined or {})
        self._servers[kind] = sorted({*self._servers[kind], server})
        for watcher in self._watchers:
            watcher(server, kind)
        return True

    def clear(self, server: str) -> None:
        """A server is gone: nothing of its own is offered any more."""
        for kind in Kind:
            if self._shelves.get((server, kind), Shelf()).offers:
                self.put(server, kind, ())

    def find(self, kind: Kind, key: str) -> Offer | None:
        """The offer of that public name, or of that bare name while only one server has it."""
        offer = self._public.get((kind, key))
        if offer is not None:
            return offer
        # Named like another server's, it would be called in that one's stead while it is away.
        holders = self._bare.get((kind, key)) if SEPARATOR not in key else None
        return next(iter(holders.values())) if holders and len(holders) == 1 else None

    def find_resource(self, uri: str) -> Offer | None:
        """The resource listed under that URI, or a template that it fits."""
        return self._public.get((Kind.RESOURCE, uri)) or self._templates.find(uri)

    def quarantined(self, server: str, kind: Kind = Kind.TOOL) -> Mapping[str, str]:
        """Why some of a server's offers are not shown, by the server's own names."""
        return self._shelves.get((server, kind), Shelf()).quarantined

    def count(self, server: str, kind: Kind) -> int:
        return len(self._shelves.get((server, kind), Shelf()).offers)

    def page(
        self, kind: Kind, shown: Callable[[str], bool], cursor: str | None
    ) -> tuple[list[bytes], str | None]:
        """The definitions that follow the cursor, and the next cursor if there are more."""
        server, key = _read_cursor(cursor) if cursor is not None else ("", "")
        found: list[bytes] = []
        size = 0
        servers = self._servers[kind]
        for holder in servers[bisect_right(servers, server) - 1 if server in servers else 0 :]:
            if not shown(holder) or holder < server:
                continue
            shelf = self._shelves[holder, kind]
            start = bisect_right(shelf.keys, key) if holder == server else 0
            for offer in shelf.offers[start:]:
                if len(found) >= PAGE_ITEMS or size > PAGE_BYTES:
                    return found, _write_cursor(server, key)
                found.append(offer.definition)
                size += len(offer.definition)
                server, key = holder, offer.key
        return found, None

    def _learn(self, kind: Kind, offer: Offer) -> None:
        # Two servers may list the same resource. Which of them keeps it must not depend on who is
        # quicker, or a server could take another's place.
        held = self._public.get((kind, offer.key))
        if held is None or offer.server < held.server:
            self._public[kind, offer.key] = offer
        self._bare.setdefault((kind, offer.name), {})[offer.server] = offer
        if kind is Kind.TEMPLATE:
            self._templates.add(offer.name, offer)

    def _forget(self, kind: Kind, offer: Offer) -> None:
        holders = self._bare.get((kind, offer.name), {})
        holders.pop(offer.server, None)
        if not holders:
            self._bare.pop((kind, offer.name), None)
        if self._public.get((kind, offer.key)) is offer:
            del self._public[kind, offer.key]
            heirs = [other for other in holders.values() if other.key == offer.key]
            if heirs:
                self._public[kind, offer.key] = min(heirs, key=lambda heir: heir.server)
        if kind is Kind.TEMPLATE:
            self._templates.remove(offer.name, offer)


def _write_cursor(server: str, key: str) -> str:
    return base64.urlsafe_b64encode(jsonrpc.to_json((server, key))).decode()


def _read_cursor(cursor: str) -> tuple[str, str]:
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise MalformedMessage(NOT_OURS, INVALID_PARAMS) from None
    if _write_cursor(*place) != cursor:
        raise MalformedMessage(NOT_OURS, INVALID_PARAMS)
    return place
