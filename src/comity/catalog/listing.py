"""Reads the lists of servers into the catalog, and reads them again when they change."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from comity.catalog.catalog import MAX_NAME_LENGTH, NAME_MEMBER_BY_KIND, Catalog
from comity.errors import MalformedMessage, Unavailable
from comity.mcp import jsonrpc, mcpl, protocol
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import EXTENSION_KEY, SERVER_EXTENSIONS, offer_extensions
from comity.mcp.protocol import Era
from comity.sessions.upstream import UpstreamConnection
from comity.telemetry.tracing import Headers
from comity.toolkit.background import BackgroundTasks, LoopYielder, PausableTimeout, draw_delay
from comity.toolkit.resilience import RetrySchedule
from comity.validation.service import SchemaChecker

log = logging.getLogger(__name__)

MAX_PAGES: Final = 1000
MAX_ENTRIES: Final = 100_000
MAX_TEMPLATES: Final = 1000
"""Lower than MOST_OFFERS, since a URI may have to be matched against every template."""
MAX_LIST_BYTES: Final = 64 * 1024 * 1024
MAX_LOGGED_FAULTS: Final = 10
MAX_TOOL_BYTES: Final = 256 * 1024
"""In bytes. The gateway sets a tool with a longer definition aside."""

MAX_TOOL_VALUES: Final = 10_000
"""The gateway also sets aside a tool with more values, since it checks each of them."""

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""In bytes. A longer schema is not used, so the gateway does not decode it."""

METHOD_BY_KIND: Final = {
    EntryKind.TOOL: protocol.LIST_TOOLS,
    EntryKind.PROMPT: protocol.LIST_PROMPTS,
    EntryKind.RESOURCE: protocol.LIST_RESOURCES,
    EntryKind.TEMPLATE: protocol.LIST_TEMPLATES,
}
KIND_OF_LIST: Final = {method: kind for kind, method in METHOD_BY_KIND.items()}
KINDS_BY_NOTIFICATION: Final = {
    protocol.TOOLS_CHANGED: (EntryKind.TOOL,),
    protocol.PROMPTS_CHANGED: (EntryKind.PROMPT,),
    protocol.RESOURCES_CHANGED: (EntryKind.RESOURCE, EntryKind.TEMPLATE),
}
GATEWAY_INFO: Final = {"name": "comity", "version": "0.1.0"}
"""The name and version that the gateway gives to servers."""

UI_EXTENSIONS: Final[Mapping[str, object]] = {
    "io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}
}
"""MCP Apps. A server lists the user interfaces of its tools only to clients that declare it."""

GATEWAY_CAPABILITIES: Final = {
    "mgp": offer_extensions(SERVER_EXTENSIONS),
    "extensions": {
        EXTENSION_KEY: offer_extensions(SERVER_EXTENSIONS),
        mcpl.EXTENSION_KEY: mcpl.OFFERED,
        **UI_EXTENSIONS,
    },
}
"""The capabilities that the gateway declares to modern servers.

MGP appears twice: as its document defines it, and as an extension in the modern form.
"""

SCHEMA_MEMBERS: Final = ("inputSchema", "outputSchema")

type Entry = tuple[str, dict[str, Raw]]

_list_of_objects = msgspec.json.Decoder(list[dict[str, Raw]])


def gateway_envelope() -> dict[str, object]:
    """Return the `_meta` envelope of a request that the gateway itself sends to a modern server."""
    return {
        protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
        protocol.CLIENT_CAPABILITIES: GATEWAY_CAPABILITIES,
        protocol.CLIENT_INFO: GATEWAY_INFO,
    }


class ToolReviewer(Protocol):
    """Reviews a server's tools before any client is shown them."""

    async def review_list(self, server: str, entries: Sequence[CatalogEntry]) -> None: ...


class CatalogReader:
    """Reads the lists of a server over a connection and puts them into the catalog."""

    def __init__(
        self, catalog: Catalog, schema_checker: SchemaChecker, tools: ToolReviewer | None = None
    ) -> None:
        self._catalog = catalog
        self._schema_checker = schema_checker
        self._tools = tools

    def announce(self, server: str, kinds: Iterable[EntryKind]) -> None:
        """Tell the watchers of the catalog that these lists changed for some clients."""
        for kind in kinds:
            self._catalog.announce(server, kind)

    async def read(
        self,
        connection: UpstreamConnection,
        era: Era,
        kinds: tuple[EntryKind, ...],
        timeout: PausableTimeout | None = None,
    ) -> None:
        """Read these kinds and put them into the catalog.

        Raises Unavailable if the server does not answer or sends a malformed list.
        """
        for kind in kinds:
            entries = await self._read_entries(connection, era, kind)
            # The server's time limit does not run while the gateway itself checks the list.
            with (timeout or PausableTimeout()).paused():
                await self._store_entries(connection.server, kind, entries)

    async def _store_entries(self, server: str, kind: EntryKind, entries: Sequence[Entry]) -> None:
        """Put a server's entries into the catalog, except for unusable ones."""
        faults = await self._find_faults(kind, entries)
        offers: dict[str, CatalogEntry] = {}
        breath = LoopYielder()
        for name, entry in entries:
            await breath.count(_entry_bytes(entry))
            if name not in faults:
                offer = self._make_entry(server, kind, name, entry)
                offers.setdefault(offer.key, offer)
        for name, why in list(faults.items())[:MAX_LOGGED_FAULTS]:
            log.warning("server %r: tool %.100r is quarantined: %.300s", server, name, why)
        if len(faults) > MAX_LOGGED_FAULTS:
            log.warning("server %r: and %d more", server, len(faults) - MAX_LOGGED_FAULTS)
        if kind is EntryKind.TOOL and self._tools is not None:
            await self._tools.review_list(server, list(offers.values()))
        # A server whose id has the same prefix may have come during the review.
        named = [self._catalog.with_public_name(kind, offer) for offer in offers.values()]
        self._catalog.put(server, kind, named, faults)

    def _make_entry(
        self, server: str, kind: EntryKind, name: str, entry: dict[str, Raw]
    ) -> CatalogEntry:
        if NAME_MEMBER_BY_KIND[kind] != "name":
            return CatalogEntry(name, server, name, jsonrpc.to_json(entry))
        public = self._catalog.public_name(server, name)
        return CatalogEntry(public, server, name, jsonrpc.to_json({**entry, "name": public}))

    async def _read_entries(
        self, connection: UpstreamConnection, era: Era, kind: EntryKind
    ) -> list[Entry]:
        """Return the entries by name; the first of several with the same name counts."""
        found: dict[str, dict[str, Raw]] = {}
        most = MAX_TEMPLATES if kind is EntryKind.TEMPLATE else MAX_ENTRIES
        cursor, size = None, 0
        for _ in range(MAX_PAGES):
            entries, cursor = await self._read_page(connection, era, kind, cursor)
            for entry in entries:
                name = _entry_name(kind, entry)
                if name is not None and len(found) < most:
                    found.setdefault(name, entry)
            size += sum(len(memoryview(raw)) for entry in entries for raw in entry.values())
            if cursor is None:
                return list(found.items())
            if size > MAX_LIST_BYTES or len(found) >= most:
                break
            await asyncio.sleep(0)
        log.warning("server %r: its list of %s is too long; truncated", connection.server, kind)
        return list(found.items())

    async def _read_page(
        self, connection: UpstreamConnection, era: Era, kind: EntryKind, cursor: str | None
    ) -> tuple[list[dict[str, Raw]], str | None]:
        method = METHOD_BY_KIND[kind]
        params: dict[str, object] = {} if cursor is None else {"cursor": cursor}
        headers: Headers = ()
        if era is Era.MODERN:
            params["_meta"] = gateway_envelope()
            headers = ((protocol.METHOD_HEADER, method.encode()),)
        answer = await connection.request(method, params or UNSET, headers)
        error = jsonrpc.error_of(answer)
        if error is not None:
            # Some servers declare a capability and answer its list with an error: treat it as
            # empty.
            log.info("server %r answered %s: %s", connection.server, method, error.message)
            return [], None
        assert answer.result is not UNSET
        result = jsonrpc.decode_members(answer.result)
        try:
            entries = _list_of_objects.decode(result.get(kind, b"[]"))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"server {connection.server!r} sent a misshapen {method}") from None
        following = jsonrpc.decode_text(result.get("nextCursor"))
        # A server that repeats the cursor would be read without end.
        return entries, None if following == cursor else following

    async def _find_faults(self, kind: EntryKind, entries: Sequence[Entry]) -> dict[str, str]:
        if kind is not EntryKind.TOOL:
            return {}
        faults: dict[str, str] = {}
        schemas: dict[str, object] = {}
        breath = LoopYielder()
        for name, entry in entries:
            await breath.count(_entry_bytes(entry))
            if reason := _exceeded_limit(entry):
                faults[name] = reason
                continue
            # One tool without an input schema makes some clients refuse the whole list.
            schemas.setdefault(f"inputSchema {name}", None)
            for member in SCHEMA_MEMBERS:
                if member in entry:
                    try:
                        schemas[f"{member} {name}"] = _decode_schema(entry[member])
                    except MalformedMessage as error:
                        faults[name] = f"{member}: {error}"
        for label, why in (await self._schema_checker.faults(schemas)).items():
            member, _, name = label.partition(" ")
            faults.setdefault(name, f"{member}: {why}")
        return faults


def _entry_bytes(entry: Mapping[str, Raw]) -> int:
    return sum(map(len, entry.values()))


def _exceeded_limit(entry: Mapping[str, Raw]) -> str:
    """Return the limit that a definition exceeds, or an empty text."""
    if _entry_bytes(entry) > MAX_TOOL_BYTES:
        return f"it has over {MAX_TOOL_BYTES} bytes"
    return jsonrpc.excess_reason(jsonrpc.to_json(entry), jsonrpc.LIMITS.depth, MAX_TOOL_VALUES)


def _decode_schema(raw: Raw) -> object:
    if len(raw) > MAX_SCHEMA_BYTES:
        raise MalformedMessage(f"it has over {MAX_SCHEMA_BYTES} bytes")
    return jsonrpc.decode_value(raw)


def _entry_name(kind: EntryKind, entry: dict[str, Raw]) -> str | None:
    try:
        name = jsonrpc.decode_text(entry.get(NAME_MEMBER_BY_KIND[kind]))
    except MalformedMessage:
        return None
    return name if name and len(name) <= MAX_NAME_LENGTH else None


LISTEN_FILTER: Final = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}

type Source = Callable[[], tuple[UpstreamConnection, Era] | None]
"""Returns the connection and the era for reading the lists; None while there is no connection."""


class CatalogRefresher:
    """Keeps the catalog entries of one server up to date."""

    def __init__(
        self,
        name: str,
        catalog_reader: CatalogReader,
        current_connection: Source,
        timeout: timedelta,
        backoff: RetrySchedule,
    ) -> None:
        self._name = name
        self._catalog_reader = catalog_reader
        self._current_connection = current_connection
        self._timeout = timeout
        self._backoff = backoff
        self._stale_kinds: set[EntryKind] = set()
        self._read_lock = asyncio.Lock()
        self._background_tasks = BackgroundTasks(f"server {name!r}")

    async def read(self, capabilities: Raw | None, timeout: PausableTimeout) -> None:
        """Read all lists that a server declared, and no others. (MCP §4.1)

        Raises Unavailable if the server does not answer.
        """
        declared = _declared_capabilities(capabilities)
        async with self._read_lock:
            kinds = (
                kind
                for kind in EntryKind
                if protocol.SERVER_CAPABILITY[METHOD_BY_KIND[kind]] in declared
            )
            await self._read(tuple(kinds), timeout)

    def on_list_changed(self, method: str) -> None:
        """Note that the server announced a changed list, and read it again in the background."""
        if not self._stale_kinds:
            self._background_tasks.start(self._reread_stale())
        self._stale_kinds.update(KINDS_BY_NOTIFICATION[method])

    def on_some_lists_changed(self, method: str) -> None:
        """Note a change announced on a shared connection, where the list may differ per client."""
        self._catalog_reader.announce(self._name, KINDS_BY_NOTIFICATION[method])
        self.on_list_changed(method)

    def listen(self, connection: UpstreamConnection) -> None:
        """Subscribe to the changes of a modern server, for as long as the connection lives."""
        self._background_tasks.start(self._listen(connection))

    def stop(self) -> None:
        """Stop reading; the next start of the server reads all lists."""
        self._background_tasks.cancel()
        self._stale_kinds.clear()

    async def _listen(self, connection: UpstreamConnection) -> None:
        params = {"_meta": gateway_envelope(), "notifications": LISTEN_FILTER}
        headers = ((protocol.METHOD_HEADER, protocol.LISTEN.encode()),)
        ended = 0
        while connection.is_open:
            try:
                answer = await connection.request(
                    protocol.LISTEN, params, headers, self._on_notification
                )
                if answer.error is not UNSET:
                    # The server does not support the method, so a retry would not help.
                    return
            except Unavailable as error:
                log.info("server %r: its list changes cannot be received: %s", self._name, error)
            ended += 1
            pause = draw_delay(self._backoff, ended)
            await asyncio.sleep(pause.total_seconds())
            # The server announced no changes while the stream was down, so all lists may be stale.
            for method in KINDS_BY_NOTIFICATION:
                self.on_list_changed(method)

    def _on_notification(self, frame: Frame) -> None:
        if frame.method in KINDS_BY_NOTIFICATION:
            self.on_list_changed(str(frame.method))

    async def _reread_stale(self) -> None:
        async with self._read_lock:
            kinds = tuple(kind for kind in EntryKind if kind in self._stale_kinds)
            self._stale_kinds.clear()
            try:
                async with asyncio.timeout(self._timeout.total_seconds()) as limit:
                    await self._read(kinds, PausableTimeout(limit))
            except (Unavailable, MalformedMessage, TimeoutError) as error:
                log.warning("server %r: its list could not be read again: %s", self._name, error)

    async def _read(self, kinds: tuple[EntryKind, ...], timeout: PausableTimeout) -> None:
        source = self._current_connection()
        if source is not None:
            await self._catalog_reader.read(*source, kinds, timeout)


def _declared_capabilities(capabilities: Raw | None) -> Mapping[str, Raw]:
    try:
        return {} if capabilities is None else jsonrpc.decode_members(capabilities)
    except MalformedMessage:
        return {}
