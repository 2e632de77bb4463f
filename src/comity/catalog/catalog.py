"""The catalog: entries of all servers, their names, pages and URI templates."""

import base64
import binascii
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self, cast

import msgspec

from comity.catalog.signatures import CATALOGUE_VERSION, TAGS_KEY, Schema
from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.protocol import (
    SEPARATOR,
    is_written_name,
    marked_name,
    public_name,
    public_prefix,
)

_EXPRESSION_PATTERN: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
SEPARATORS: Final = "/?#"
MAX_TEMPLATE_LENGTH: Final = 8192


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """A parsed URI template: `literals[0] gap literals[1] gap …`.

    `wide[i]` tells whether gap i matches any text, separators included.
    """

    literals: tuple[str, ...]
    wide: tuple[bool, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a template; only expressions within the first LONGEST characters become gaps."""
        literals, wide, end = [""], list[bool](), 0
        for expression in _EXPRESSION_PATTERN.finditer(text[:MAX_TEMPLATE_LENGTH]):
            literals[-1] += text[end : expression.start()]
            end = expression.end()
            if wide and not literals[-1]:
                # Two adjacent gaps match the same texts as one.
                wide[-1] = wide[-1] or bool(expression[1])
            else:
                wide.append(bool(expression[1]))
                literals.append("")
        literals[-1] += text[end:]
        return cls(tuple(literals), tuple(wide))

    def matches(self, uri: str) -> bool:
        """Return whether the template can expand to this URI."""
        head, tail = self.literals[0], self.literals[-1]
        if not self.wide:
            return uri == head
        if len(uri) > MAX_TEMPLATE_LENGTH or len(uri) < len(head) + len(tail):
            return False
        if not (uri.startswith(head) and uri.endswith(tail)):
            return False
        between = uri[len(head) : len(uri) - len(tail)]
        return _matches(between, self.literals[1:-1], self.wide)


def _matches(text: str, literals: tuple[str, ...], wide: tuple[bool, ...]) -> bool:
    """Return whether the text is `gap literal gap … gap`.

    Bit i of `reached` tells that a match may end before character i.
    """
    where: dict[str, int] = {}
    for place, character in enumerate(text):
        where[character] = where.get(character, 0) | 1 << place
    every = (1 << len(text) + 1) - 1
    inside = every >> 1 & ~sum(where.get(character, 0) for character in SEPARATORS)
    reached = 1
    for number, gap_is_wide in enumerate(wide):
        if gap_is_wide:
            # A wide gap reaches every position from the first one on.
            reached = every & -(reached & -reached)
        else:
            # The addition carries each position through to the end of its segment.
            reached |= ((reached & inside) + inside) ^ inside
        for character in literals[number] if number < len(literals) else "":
            reached = (reached & where.get(character, 0)) << 1
        if not reached:
            return False
    return bool(reached >> len(text) & 1)


class UriTemplateIndex[Owner]:
    """URI templates with their owners, looked up by a URI that they fit."""

    def __init__(self) -> None:
        self._by_head: dict[str, list[tuple[UriTemplate, Owner]]] = {}
        self._heads_of_length: dict[int, int] = {}

    def add(self, text: str, owner: Owner) -> None:
        template = UriTemplate.parse(text)
        head = template.literals[0]
        if head not in self._by_head:
            self._by_head[head] = []
            self._heads_of_length[len(head)] = self._heads_of_length.get(len(head), 0) + 1
        self._by_head[head].append((template, owner))

    def remove(self, text: str, owner: Owner) -> None:
        head = UriTemplate.parse(text).literals[0]
        kept = [entry for entry in self._by_head.get(head, []) if entry[1] != owner]
        if kept:
            self._by_head[head] = kept
        elif self._by_head.pop(head, None) is not None:
            self._heads_of_length[len(head)] -= 1
            if not self._heads_of_length[len(head)]:
                del self._heads_of_length[len(head)]

    def find(self, uri: str) -> Owner | None:
        """Return the owner of the fitting template with the longest literal beginning, or None."""
        return next(self.find_all(uri), None)

    def find_all(self, uri: str) -> Iterator[Owner]:
        """Yield the owners of all templates that the URI fits, longest literal beginning first."""
        if len(uri) > MAX_TEMPLATE_LENGTH:
            return
        for length in sorted(self._heads_of_length, reverse=True):
            for template, owner in self._by_head.get(uri[:length], ()):
                if template.matches(uri):
                    yield owner


NAME_MEMBER_BY_KIND: Final = {
    EntryKind.TOOL: "name",
    EntryKind.PROMPT: "name",
    EntryKind.RESOURCE: "uri",
    EntryKind.TEMPLATE: "uriTemplate",
}
"""The member that has the name of an entry in its server's list."""

PAGE_ITEMS = 1000
PAGE_BYTES = 2 * 1024 * 1024
MAX_HIDDEN_PER_PAGE = 5000
"""The number of hidden entries that one page may skip; checking them takes about 10 ms."""

UNKNOWN_CURSOR_TEXT = "a cursor that was not given out here"

MAX_NAME_LENGTH = 8192
"""In characters. The gateway compares, authorizes and records each requested name."""


@dataclass(slots=True)
class ServerEntries:
    """The entries of one kind that one server lists."""

    keys: list[str] = field(default_factory=list[str])
    entries: list[CatalogEntry] = field(default_factory=list[CatalogEntry])
    quarantined: Mapping[str, str] = field(default_factory=dict[str, str])


type Place = tuple[str, EntryKind]


class ServerEntryView(Protocol):
    """A filter over the entries of one server."""

    @property
    def only_names(self) -> Sequence[str] | None:
        """The only names that can be visible; None if each entry has to be checked."""
        ...

    def is_visible(self, entry: CatalogEntry) -> bool: ...


class CatalogView(Protocol):
    """A filter over the entries of all servers."""

    @property
    def servers(self) -> Collection[str] | None:
        """The only servers with visible entries; None if any server may have some."""
        ...

    def server_view(self, server: str) -> ServerEntryView | None:
        """Return the view of one server; None if nothing of it is visible."""
        ...


@dataclass(slots=True)
class _CatalogPage:
    """A page in progress: its definitions, the position of the last one, and the hidden entries."""

    definitions: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    hidden_count: int = 0
    last_position: tuple[str, str | int] = ("", "")

    @property
    def is_full(self) -> bool:
        return len(self.definitions) >= PAGE_ITEMS or self.size > PAGE_BYTES

    def add(self, entry: CatalogEntry) -> None:
        self.definitions.append(entry.definition)
        self.size += len(entry.definition)
        self.last_position = (entry.server, entry.key)


class Catalog:
    """The entries of all servers, with indexes by public name, by bare name and by URI."""

    def __init__(self) -> None:
        self._entries_by_server: dict[Place, ServerEntries] = {}
        self._servers: dict[EntryKind, list[str]] = {kind: [] for kind in EntryKind}
        self._entry_by_public_name: dict[tuple[EntryKind, str], CatalogEntry] = {}
        self._entries_by_bare_name: dict[tuple[EntryKind, str], dict[str, CatalogEntry]] = {}
        self._servers_by_prefix: dict[str, set[str]] = {}
        self.starting_servers: set[str] = set()
        """The servers that start and whose entries are not known yet."""
        self.failed_servers: dict[str, str] = {}
        """The servers that failed before their entries were known, with the reason."""
        self._templates: UriTemplateIndex[CatalogEntry] = UriTemplateIndex()
        self._watchers: list[Callable[[str, EntryKind], None]] = []

    def watch(self, watcher: Callable[[str, EntryKind], None]) -> None:
        """Call the watcher with the server and the kind whenever a list of entries changes."""
        self._watchers.append(watcher)

    def put(
        self,
        server: str,
        kind: EntryKind,
        entries: Sequence[CatalogEntry],
        quarantined: Mapping[str, str] | None = None,
    ) -> bool:
        """Replace a server's entries of one kind; return whether anything changed."""
        self.add_server(server)
        ordered = sorted(entries, key=lambda offer: offer.key)
        old = self._entries_by_server.get((server, kind), ServerEntries())
        if old.entries == ordered and (server, kind) in self._entries_by_server:
            old.quarantined = quarantined or {}
            return False
        for offer in old.entries:
            self._remove_from_indexes(kind, offer)
        for offer in ordered:
            self._add_to_indexes(kind, offer)
        keys = [offer.key for offer in ordered]
        self._entries_by_server[server, kind] = ServerEntries(keys, ordered, quarantined or {})
        self._insert_server_in_order(kind, server)
        self.announce(server, kind)
        return True

    def _insert_server_in_order(self, kind: EntryKind, server: str) -> None:
        servers = self._servers[kind]
        at = bisect_left(servers, server)
        if servers[at : at + 1] != [server]:
            servers.insert(at, server)

    def announce(self, server: str, kind: EntryKind) -> None:
        """Tell every watcher that a server's entries of a kind have changed."""
        for watcher in self._watchers:
            watcher(server, kind)

    def clear(self, server: str) -> None:
        """Remove all entries of a server that is gone."""
        for kind in EntryKind:
            if self._entries_by_server.get((server, kind), ServerEntries()).entries:
                self.put(server, kind, ())

    def add_server(self, server: str) -> None:
        """Note a server of this gateway, whether or not its entries are known.

        Ids such as `a.b` and `a_b` have one prefix. The names of all servers that share a prefix
        end in a digest. Otherwise a server could choose an id to take a name of another one. The
        rule depends on the ids alone, so that every node has the same names.
        """
        sharing = self._servers_by_prefix.setdefault(public_prefix(server), set())
        if server not in sharing:
            sharing.add(server)
            self._rename_entries(sharing)

    def remove_server(self, server: str) -> None:
        """Forget a server that is gone for good. Its prefix is free for others."""
        prefix = public_prefix(server)
        sharing = self._servers_by_prefix.get(prefix, set())
        sharing.discard(server)
        if not sharing:
            self._servers_by_prefix.pop(prefix, None)
        self._rename_entries(sharing)

    def public_name(self, server: str, name: str) -> str:
        """Return the name under which clients of all servers see an entry."""
        if len(self._servers_by_prefix.get(public_prefix(server), ())) > 1:
            return marked_name(server, name)
        return public_name(server, name)

    def with_public_name(self, kind: EntryKind, entry: CatalogEntry) -> CatalogEntry:
        """Return the entry under the name that it has now. A resource is known by its URI."""
        if NAME_MEMBER_BY_KIND[kind] != "name":
            return entry
        key = self.public_name(entry.server, entry.name)
        if key == entry.key:
            return entry
        definition = {**jsonrpc.decode_members(entry.definition), "name": key}
        return replace(entry, key=key, definition=jsonrpc.to_json(definition))

    def _rename_entries(self, servers: Iterable[str]) -> None:
        for server in list(servers):
            for kind in EntryKind:
                listed = self._entries_by_server.get((server, kind))
                if listed is not None:
                    named = [self.with_public_name(kind, each) for each in listed.entries]
                    self.put(server, kind, named, listed.quarantined)

    def expect(self, server: str) -> None:
        """Note that a server starts, unless its entries are known from before."""
        # A server that was replaced or stopped has left empty lists.
        if not any(self.count(server, kind) for kind in EntryKind):
            self.starting_servers.add(server)

    def has_server(self, server: str) -> bool:
        """Return whether a server has put its entries here, if only an empty list."""
        return any((server, kind) in self._entries_by_server for kind in EntryKind)

    def find(self, kind: EntryKind, key: str) -> CatalogEntry | None:
        """Return the entry of a public name, or of a bare name that only one server has."""
        offer = self._entry_by_public_name.get((kind, key))
        if offer is not None:
            return offer
        holders = self.find_bare(kind, key)
        return holders[0] if len(holders) == 1 else None

    def find_public(self, kind: EntryKind, key: str) -> CatalogEntry | None:
        """Return the entry of that public name, or None."""
        return self._entry_by_public_name.get((kind, key))

    def find_bare(self, kind: EntryKind, name: str) -> list[CatalogEntry]:
        """Return the entries of all servers that have this bare name.

        A name that contains the separator has none.
        """
        # A tool named like another server's public name would receive its calls while that server
        # is away.
        held = self._entries_by_bare_name.get((kind, name)) if SEPARATOR not in name else None
        return [] if held is None else list(held.values())

    def find_written(self, kind: EntryKind, key: str) -> CatalogEntry | None:
        """Return the entry of a name that is written with the id of its server, or None.

        `mind.cerebras__think` has a character that no public name has, so it takes no name from
        another entry. With a second separator it could mean two servers, and means none.
        """
        server, _, name = key.partition(SEPARATOR)
        is_clear = is_written_name(key) and SEPARATOR not in name
        return self.find_own(server, kind, name) if is_clear else None

    def find_sharing(self, kind: EntryKind, key: str) -> list[CatalogEntry]:
        """Return the entries that would have this public name if they did not share it."""
        prefix, _, name = key.partition(SEPARATOR)
        sharing = sorted(self._servers_by_prefix.get(prefix, ()))
        found = (self.find_own(server, kind, name) for server in sharing)
        return [] if len(sharing) < 2 else [each for each in found if each is not None]

    def split_public_name(self, key: str) -> tuple[str, str]:
        """Split a public name into server and name, whether or not such an entry exists."""
        front, separator, name = key.partition(SEPARATOR)
        if not separator:
            return "", key
        sharing = self._servers_by_prefix.get(front, ())
        return next(iter(sharing)) if len(sharing) == 1 else front, name

    def find_own(self, server: str, kind: EntryKind, name: str) -> CatalogEntry | None:
        """Return the entry that a server lists under a name of its own, or None."""
        return self._entries_by_bare_name.get((kind, name), _NO_ENTRIES).get(server)

    def find_resource(self, uri: str) -> CatalogEntry | None:
        """Return the resource listed under that URI, or the first template that it fits."""
        return self._entry_by_public_name.get((EntryKind.RESOURCE, uri)) or self._templates.find(
            uri
        )

    def find_resources(self, uri: str) -> Iterator[CatalogEntry]:
        """Yield every server's resource of that URI, then every template that it fits."""
        yield from self.find_by_name(EntryKind.RESOURCE, uri)
        yield from self._templates.find_all(uri)

    def find_by_name(self, kind: EntryKind, name: str) -> list[CatalogEntry]:
        """Return the entries of all servers that use this name, in the order of servers."""
        return [
            offer
            for _, offer in sorted(
                self._entries_by_bare_name.get((kind, name), _NO_ENTRIES).items()
            )
        ]

    def quarantine_reasons(
        self, server: str, kind: EntryKind = EntryKind.TOOL
    ) -> Mapping[str, str]:
        """Return why entries of a server are quarantined, by the server's own names."""
        return self._entries_by_server.get((server, kind), ServerEntries()).quarantined

    def has_entry(self, server: str, kind: EntryKind, name: str) -> bool:
        """Return whether the server lists an entry under that name of its own."""
        return server in self._entries_by_bare_name.get((kind, name), ())

    def names(self, server: str, kind: EntryKind) -> list[str]:
        """Return the server's own names of its entries, in list order."""
        return [
            offer.name
            for offer in self._entries_by_server.get((server, kind), ServerEntries()).entries
        ]

    def entries(self, server: str, kind: EntryKind) -> Sequence[CatalogEntry]:
        """Return a server's entries of a kind, in list order."""
        return self._entries_by_server.get((server, kind), ServerEntries()).entries

    def servers(self, kind: EntryKind) -> Sequence[str]:
        """Return the servers that ever listed an entry of a kind, in order."""
        return self._servers[kind]

    def visible_entries(
        self, server: str, kind: EntryKind, view: ServerEntryView
    ) -> list[CatalogEntry]:
        """Return the visible entries of a server; stop after MOST_UNSEEN hidden ones."""
        found: list[CatalogEntry] = []
        unseen = 0
        for offer in (
            self._candidates((server, kind), 0, view) if self._has_entries(server, kind) else ()
        ):
            if view.is_visible(offer):
                found.append(offer)
            else:
                unseen += 1
                if unseen > MAX_HIDDEN_PER_PAGE:
                    break
        return found

    def _has_entries(self, server: str, kind: EntryKind) -> bool:
        return (server, kind) in self._entries_by_server

    def count(self, server: str, kind: EntryKind) -> int:
        return len(self._entries_by_server.get((server, kind), ServerEntries()).entries)

    def page(
        self,
        kind: EntryKind,
        is_shown: Callable[[str], bool],
        cursor: str | None,
        catalog_view: CatalogView | None = None,
    ) -> tuple[list[bytes], str | None]:
        """Return the definitions after the cursor, and the next cursor if there are more.

        Raises MalformedMessage if the cursor was not given out by this gateway.
        """
        server, place = _read_cursor(cursor) if cursor is not None else ("", "")
        page = _CatalogPage()
        for holder in self._servers_from(kind, server, catalog_view):
            view = None if catalog_view is None else catalog_view.server_view(holder)
            if not is_shown(holder) or (catalog_view is not None and view is None):
                continue
            if self._fill_page(page, (holder, kind), place if holder == server else "", view):
                return page.definitions, _write_cursor(*page.last_position)
        return page.definitions, None

    def _servers_from(
        self, kind: EntryKind, server: str, catalog_view: CatalogView | None
    ) -> Iterable[str]:
        """Return the servers from this one on, in order."""
        within = None if catalog_view is None else catalog_view.servers
        if within is None:
            return self._servers[kind][bisect_left(self._servers[kind], server) :]
        return sorted(
            each for each in within if each >= server and (each, kind) in self._entries_by_server
        )

    def _fill_page(
        self,
        page: _CatalogPage,
        server_and_kind: Place,
        start_after: str | int,
        view: ServerEntryView | None,
    ) -> bool:
        """Add the visible entries of one server to a page; return whether the page ends there."""
        shelf = self._entries_by_server[server_and_kind]
        start = (
            bisect_right(shelf.keys, start_after) if isinstance(start_after, str) else start_after
        )
        for offer in self._candidates(server_and_kind, start, view):
            if view is not None and not view.is_visible(offer):
                page.hidden_count += 1
                if page.hidden_count > MAX_HIDDEN_PER_PAGE:
                    page.last_position = (server_and_kind[0], bisect_right(shelf.keys, offer.key))
                    return True
                continue
            if page.is_full:
                return True
            page.add(offer)
        return False

    def _candidates(
        self, server_and_kind: Place, start: int, view: ServerEntryView | None
    ) -> Iterable[CatalogEntry]:
        shelf, only = (
            self._entries_by_server[server_and_kind],
            None if view is None else view.only_names,
        )
        if only is None:
            return shelf.entries[start:]
        server, kind = server_and_kind
        named = (
            self._entries_by_bare_name.get((kind, name), _NO_ENTRIES).get(server) for name in only
        )
        ordered = sorted((each.key, each) for each in named if each is not None)
        after = shelf.keys[start - 1] if 0 < start <= len(shelf.keys) else ""
        return [offer for key, offer in ordered if key > after]

    def _add_to_indexes(self, kind: EntryKind, entry: CatalogEntry) -> None:
        # Two servers may list the same resource. The order of their names decides which one keeps
        # it. If the faster one won, a server could take another's place.
        held = self._entry_by_public_name.get((kind, entry.key))
        if held is None or entry.server < held.server:
            self._entry_by_public_name[kind, entry.key] = entry
        self._entries_by_bare_name.setdefault((kind, entry.name), {})[entry.server] = entry
        if kind is EntryKind.TEMPLATE:
            self._templates.add(entry.name, entry)

    def _remove_from_indexes(self, kind: EntryKind, entry: CatalogEntry) -> None:
        holders = self._entries_by_bare_name.get((kind, entry.name), {})
        holders.pop(entry.server, None)
        if not holders:
            self._entries_by_bare_name.pop((kind, entry.name), None)
        if self._entry_by_public_name.get((kind, entry.key)) is entry:
            del self._entry_by_public_name[kind, entry.key]
            heirs = [other for other in holders.values() if other.key == entry.key]
            if heirs:
                self._entry_by_public_name[kind, entry.key] = min(
                    heirs, key=lambda heir: heir.server
                )
        if kind is EntryKind.TEMPLATE:
            self._templates.remove(entry.name, entry)


def page_of(entries: Sequence[CatalogEntry], cursor: str | None) -> tuple[list[bytes], str | None]:
    """Return the definitions after the cursor of entries in the order of their keys.

    Raises MalformedMessage if the cursor was not given out by this gateway.
    """
    place = "" if cursor is None else _read_cursor(cursor)[1]
    page = _CatalogPage()
    start = 0 if cursor is None else bisect_right([each.key for each in entries], str(place))
    for entry in entries[start:]:
        if page.is_full:
            return page.definitions, _write_cursor("", page.last_position[1])
        page.add(entry)
    return page.definitions, None


_NO_ENTRIES: Mapping[str, CatalogEntry] = {}


def _write_cursor(server: str, position: str | int) -> str:
    return base64.urlsafe_b64encode(jsonrpc.to_json((server, position))).decode()


def _read_cursor(cursor: str) -> tuple[str, str | int]:
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[str, str | int])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise MalformedMessage(UNKNOWN_CURSOR_TEXT, INVALID_PARAMS) from None
    if _write_cursor(*place) != cursor or (isinstance(place[1], int) and place[1] < 0):
        raise MalformedMessage(UNKNOWN_CURSOR_TEXT, INVALID_PARAMS)
    return place


type Tool = Mapping[str, Any]

MAX_TAGS: Final = 12
MAX_TAG_LENGTH: Final = 40
MAX_WORD_LENGTH: Final = 128
CATEGORY_KEY: Final = "dev.comity/category"
_TAG_BY_HINT: Final = {
    "readOnlyHint": "read-only",
    "destructiveHint": "destructive",
    "idempotentHint": "idempotent",
    "openWorldHint": "open-world",
}
_WORD_PATTERN: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_STOP_WORDS: Final = frozenset(
    {"all", "and", "any", "does", "for", "from", "get", "has", "list", "make", "new", "set", "the"}
    | {"tool", "use", "with"}
)


def read_tool(definition: bytes) -> Tool:
    """Decode a definition from the catalog; an unreadable one becomes an empty mapping."""
    try:
        return _as_dict(jsonrpc.decode_value(definition))
    except MalformedMessage:
        return {}


def catalog_row(server: str, own_name: str, tool: Tool) -> Schema:
    """Return one row of the catalogue that clients read as data."""
    return {
        "name": _as_text(tool.get("name")),
        "description": _as_text(tool.get("description")),
        "inputSchema": tool.get("inputSchema", {}),
        "tags": tags_of(server, own_name, tool),
    }


def tags_of(server: str, own_name: str, tool: Tool) -> list[str]:
    """Return the tags of a tool: its server, its own tags, its hints and the words of its name."""
    own = _as_dict(tool.get("_meta")).get(TAGS_KEY)
    hints = _as_dict(tool.get("annotations"))
    words = (word.lower() for word in _WORD_PATTERN.findall(own_name[:MAX_WORD_LENGTH]))
    found = (
        server,
        *(each for each in _as_list(own) if isinstance(each, str)),
        *(tag for hint, tag in _TAG_BY_HINT.items() if hints.get(hint) is True),
        *(word for word in words if len(word) > 2 and word not in _STOP_WORDS),
    )
    return _without_duplicates(found)[:MAX_TAGS]


def metadata_of(server: str, tool: Tool, about: Tool) -> Schema:
    """Return the category, version, author and deprecation of a tool."""
    meta = _as_dict(tool.get("_meta"))
    said = (tool, _as_dict(tool.get("annotations")), _as_dict(tool.get("inputSchema")))
    return {
        "category": _as_text(meta.get(CATEGORY_KEY))[:MAX_WORD_LENGTH] or server,
        "version": _as_text(about.get("version"))[:MAX_WORD_LENGTH] or CATALOGUE_VERSION,
        "deprecated": any(each.get("deprecated") is True for each in said),
        "author": _as_text(about.get("name"))[:MAX_WORD_LENGTH] or server,
    }


def wrap_result(result: Tool) -> Schema:
    """Return a tool result as content, and as structured content if it has or holds an object."""
    content = _as_list(result.get("content"))
    structured = result.get("structuredContent")
    if structured is None:
        structured = _parse_structure(content)
    elif not content:
        content = [{"type": "text", "text": jsonrpc.to_json(structured).decode()}]
    output: Schema = {"content": content}
    if structured is not None:
        output["structuredContent"] = structured
    if "_meta" in result:
        output["_meta"] = result["_meta"]
    return output


def result_text(result: Tool) -> str:
    """Return the texts of a result, joined by line breaks."""
    blocks = (_as_dict(block) for block in _as_list(result.get("content")))
    return "\n".join(text for text in (_as_text(block.get("text")) for block in blocks) if text)


def _parse_structure(content: list[Any]) -> object:
    """Return the object that the only text block holds as JSON, or None."""
    text = _as_text(_as_dict(content[0]).get("text")) if len(content) == 1 else ""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return jsonrpc.decode_value(text.encode())
    except (MalformedMessage, UnicodeEncodeError, msgspec.DecodeError):
        return None


def _without_duplicates(texts: Iterable[str]) -> list[str]:
    plain = (" ".join(each.split())[:MAX_TAG_LENGTH] for each in texts)
    return list(dict.fromkeys(each for each in plain if each and each.isprintable()))


def _as_dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _as_list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else ""
