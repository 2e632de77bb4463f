"""Every offer of every server, in one stable order, with names no two of them share.

Each server's offers of a kind stand on one shelf, sorted; a change replaces that shelf alone. Pages
walk the shelves in the order of server ids, so a cursor is a place in an order that does not move.
A page looks at a bounded number of offers that its reader does not see; then it ends, and the next
one goes on from a number, which names nobody.
"""

import base64
import binascii
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from comity.rules import templates
from comity.rules.names import SEPARATOR, public_prefix
from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

PAGE_ITEMS = 1000
PAGE_BYTES = 2 * 1024 * 1024
MOST_UNSEEN = 5000
"""So many offers are looked at in vain in some ten milliseconds."""

NOT_OURS = "a cursor that was not given out here"

LONGEST_NAME = 8192
"""In characters: whatever is asked for is compared, judged and written down by its name."""


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


class View(Protocol):
    """How somebody looks at the offers of one server."""

    @property
    def only(self) -> Sequence[str] | None:
        """The only names that can be seen; None where each offer has to be looked at."""
        ...

    def sees(self, offer: Offer) -> bool: ...


class Sight(Protocol):
    """What somebody sees of the shelves."""

    @property
    def servers(self) -> Collection[str] | None:
        """The only servers of which anything can be seen; None where that could be any."""
        ...

    def over(self, server: str) -> View | None:
        """None where nothing of a server is seen."""
        ...


@dataclass(slots=True)
class _Page:
    """What was found so far, where the last of it stands, and what was looked at in vain."""

    found: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    unseen: int = 0
    end: tuple[str, str | int] = ("", "")

    @property
    def is_full(self) -> bool:
        return len(self.found) >= PAGE_ITEMS or self.size > PAGE_BYTES

    def add(self, offer: Offer) -> None:
        self.found.append(offer.definition)
        self.size += len(offer.definition)
        self.end = (offer.server, offer.key)


class Catalog:
    """The shelves of all servers, and where on them a name is found."""

    def __init__(self) -> None:
        self._shelves: dict[Place, Shelf] = {}
        self._servers: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self._public: dict[tuple[Kind, str], Offer] = {}
        self._bare: dict[tuple[Kind, str], dict[str, Offer]] = {}
        self._prefixes: dict[str, str] = {}
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
        self._stand_in_order(kind, server)
        self._prefixes[public_prefix(server)] = server
        self.announce(server, kind)
        return True

    def _stand_in_order(self, kind: Kind, server: str) -> None:
        servers = self._servers[kind]
        at = bisect_left(servers, server)
        if servers[at : at + 1] != [server]:
            servers.insert(at, server)

    def announce(self, server: str, kind: Kind) -> None:
        """Tell every watcher that what a server offers of a kind is not what it was."""
        for watcher in self._watchers:
            watcher(server, kind)

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
        holders = self.holders(kind, key)
        return holders[0] if len(holders) == 1 else None

    def named(self, kind: Kind, key: str) -> Offer | None:
        """The offer of that public name."""
        return self._public.get((kind, key))

    def holders(self, kind: Kind, name: str) -> list[Offer]:
        """Every server's offer of that name of its own, where it cannot be taken for another's."""
        # Named like another server's, it would be called in that one's stead while it is away.
        held = self._bare.get((kind, name)) if SEPARATOR not in name else None
        return [] if held is None else list(held.values())

    def place(self, key: str) -> tuple[str, str]:
        """The server and the name that a public name speaks of, whether or not there is one."""
        front, separator, name = key.partition(SEPARATOR)
        if not separator:
            return "", key
        return self._prefixes.get(front, front), name

    def offered(self, server: str, kind: Kind, name: str) -> Offer | None:
        """What a server offers under a name of its own."""
        return self._bare.get((kind, name), _NOBODY).get(server)

    def find_resource(self, uri: str) -> Offer | None:
        """The resource listed under that URI, or a template that it fits."""
        return self._public.get((Kind.RESOURCE, uri)) or self._templates.find(uri)

    def resources_at(self, uri: str) -> Iterator[Offer]:
        """Every server's resource of that URI, and every template that it fits, as they count."""
        yield from self.listed(Kind.RESOURCE, uri)
        yield from self._templates.fitting(uri)

    def listed(self, kind: Kind, name: str) -> list[Offer]:
        """Every server's offer of that name of its own, in the order of servers."""
        return [offer for _, offer in sorted(self._bare.get((kind, name), _NOBODY).items())]

    def quarantined(self, server: str, kind: Kind = Kind.TOOL) -> Mapping[str, str]:
        """Why some of a server's offers are not shown, by the server's own names."""
        return self._shelves.get((server, kind), Shelf()).quarantined

    def has(self, server: str, kind: Kind, name: str) -> bool:
        """Whether this server offers something under that name of its own."""
        return server in self._bare.get((kind, name), ())

    def names(self, server: str, kind: Kind) -> list[str]:
        """What a server calls its own offers, in the order in which they are listed."""
        return [offer.name for offer in self._shelves.get((server, kind), Shelf()).offers]

    def offers(self, server: str, kind: Kind) -> Sequence[Offer]:
        """What a server offers, in the order in which it is listed."""
        return self._shelves.get((server, kind), Shelf()).offers

    def servers(self, kind: Kind) -> Sequence[str]:
        """The servers that ever offered anything of a kind, in order."""
        return self._servers[kind]

    def seen(self, server: str, kind: Kind, view: View) -> list[Offer]:
        """What somebody sees of one shelf, as far as a bounded number of looks in vain goes."""
        found: list[Offer] = []
        unseen = 0
        for offer in self._looked_at((server, kind), 0, view) if self._has(server, kind) else ():
            if view.sees(offer):
                found.append(offer)
            else:
                unseen += 1
                if unseen > MOST_UNSEEN:
                    break
        return found

    def _has(self, server: str, kind: Kind) -> bool:
        return (server, kind) in self._shelves

    def count(self, server: str, kind: Kind) -> int:
        return len(self._shelves.get((server, kind), Shelf()).offers)

    def page(
        self,
        kind: Kind,
        shown: Callable[[str], bool],
        cursor: str | None,
        sight: Sight | None = None,
    ) -> tuple[list[bytes], str | None]:
        """The definitions that follow the cursor, and the next cursor if there are more."""
        server, place = _read_cursor(cursor) if cursor is not None else ("", "")
        page = _Page()
        for holder in self._from(kind, server, sight):
            view = None if sight is None else sight.over(holder)
            if not shown(holder) or (sight is not None and view is None):
                continue
            if self._fill(page, (holder, kind), place if holder == server else "", view):
                return page.found, _write_cursor(*page.end)
        return page.found, None

    def _from(self, kind: Kind, server: str, sight: Sight | None) -> Iterable[str]:
        """The servers from this one on, in order."""
        within = None if sight is None else sight.servers
        if within is None:
            return self._servers[kind][bisect_left(self._servers[kind], server) :]
        return sorted(each for each in within if each >= server and (each, kind) in self._shelves)

    def _fill(self, page: _Page, where: Place, place: str | int, view: View | None) -> bool:
        """Put what is seen of one shelf on a page; whether the page ends there."""
        shelf = self._shelves[where]
        start = bisect_right(shelf.keys, place) if isinstance(place, str) else place
        for offer in self._looked_at(where, start, view):
            if view is not None and not view.sees(offer):
                page.unseen += 1
                if page.unseen > MOST_UNSEEN:
                    page.end = (where[0], bisect_right(shelf.keys, offer.key))
                    return True
                continue
            if page.is_full:
                return True
            page.add(offer)
        return False

    def _looked_at(self, where: Place, start: int, view: View | None) -> Iterable[Offer]:
        shelf, only = self._shelves[where], None if view is None else view.only
        if only is None:
            return shelf.offers[start:]
        server, kind = where
        named = (self._bare.get((kind, name), _NOBODY).get(server) for name in only)
        ordered = sorted((each.key, each) for each in named if each is not None)
        after = shelf.keys[start - 1] if 0 < start <= len(shelf.keys) else ""
        return [offer for key, offer in ordered if key > after]

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


_NOBODY: Mapping[str, Offer] = {}


def _write_cursor(server: str, place: str | int) -> str:
    return base64.urlsafe_b64encode(jsonrpc.to_json((server, place))).decode()


def _read_cursor(cursor: str) -> tuple[str, str | int]:
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[str, str | int])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise MalformedMessage(NOT_OURS, INVALID_PARAMS) from None
    if _write_cursor(*place) != cursor or (isinstance(place[1], int) and place[1] < 0):
        raise MalformedMessage(NOT_OURS, INVALID_PARAMS)
    return place
