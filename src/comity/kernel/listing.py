"""Reads what a server offers, page by page and within bounds, and sets aside what is unusable.

A tool with an invalid schema makes some clients refuse every tool, so it is quarantined with its
reason and the rest of its server works.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from comity.kernel.breath import Breath
from comity.kernel.catalog import LONGEST_NAME, Catalog, Kind, Offer
from comity.kernel.links import Link
from comity.kernel.patience import Patience
from comity.ports import Headers, SchemaJudge
from comity.rules.names import public_name
from comity.rules.negotiation import TO_SERVERS, offer
from comity.wire import features, jsonrpc, mcp
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET
from comity.wire.mcp import Era
from comity.wire.negotiation import EXTENSION_KEY

log = logging.getLogger(__name__)

MOST_PAGES: Final = 1000
MOST_OFFERS: Final = 100_000
MOST_TEMPLATES: Final = 1000
"""Each may have to be tried against a URI, so there are fewer of them."""
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_TOLD: Final = 10
MOST_TOOL_BYTES: Final = 256 * 1024
"""A longer definition of a tool is set aside as it is."""

MOST_TOOL_VALUES: Final = 10_000
"""The same of one with more values, each of which is looked at."""

MOST_SCHEMA_BYTES: Final = 64 * 1024
"""A longer schema is not used, so nobody decodes it either."""

METHODS: Final = {
    Kind.TOOL: mcp.LIST_TOOLS,
    Kind.PROMPT: mcp.LIST_PROMPTS,
    Kind.RESOURCE: mcp.LIST_RESOURCES,
    Kind.TEMPLATE: mcp.LIST_TEMPLATES,
}
KIND_OF_LIST: Final = {method: kind for kind, method in METHODS.items()}
KEYS: Final = {
    Kind.TOOL: "name",
    Kind.PROMPT: "name",
    Kind.RESOURCE: "uri",
    Kind.TEMPLATE: "uriTemplate",
}
CHANGED_BY: Final = {
    mcp.TOOLS_CHANGED: (Kind.TOOL,),
    mcp.PROMPTS_CHANGED: (Kind.PROMPT,),
    mcp.RESOURCES_CHANGED: (Kind.RESOURCE, Kind.TEMPLATE),
}
OURSELVES: Final = {"name": "comity", "version": "0.1.0"}
"""How the gateway names itself to servers."""

OFFERED: Final = {
    "mgp": offer(TO_SERVERS),
    "extensions": {EXTENSION_KEY: offer(TO_SERVERS), features.EXTENSION_KEY: features.OFFERED},
}
"""What the gateway offers in the modern era: of MGP as its document says, and as the era does."""

SCHEMAS: Final = ("inputSchema", "outputSchema")

type Entry = tuple[str, dict[str, Raw]]

_list_of_objects = msgspec.json.Decoder(list[dict[str, Raw]])


def envelope() -> dict[str, object]:
    """The envelope of a request that the gateway itself makes in the modern era."""
    return {
        mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
        mcp.CLIENT_CAPABILITIES: OFFERED,
        mcp.CLIENT_INFO: OURSELVES,
    }


class Vetting(Protocol):
    """Who looks at a server's tools before anybody is shown them."""

    async def vet(self, server: str, offers: Sequence[Offer]) -> None: ...


class Listing:
    """Fills a server's shelves in the catalog over a link."""

    def __init__(self, catalog: Catalog, judge: SchemaJudge, tools: Vetting | None = None) -> None:
        self._catalog = catalog
        self._judge = judge
        self._tools = tools

    def announce(self, server: str, kinds: Iterable[Kind]) -> None:
        """Have it told that these lists are other ones now for some who read them."""
        for kind in kinds:
            self._catalog.announce(server, kind)

    async def read(
        self, link: Link, era: Era, kinds: tuple[Kind, ...], patience: Patience | None = None
    ) -> None:
        """Read these kinds and put them on their shelves; raises Unavailable."""
        for kind in kinds:
            entries = await self._entries(link, era, kind)
            with (patience or Patience()).paused():
                await self._shelve(link.server, kind, entries)

    async def _shelve(self, server: str, kind: Kind, entries: Sequence[Entry]) -> None:
        """Put what a server lists on its shelf, but for what is unusable."""
        faults = await self._faults(kind, entries)
        offers: dict[str, Offer] = {}
        breath = Breath()
        for name, entry in entries:
            await breath.take(_size(entry))
            if name not in faults:
                offer = _offer(server, kind, name, entry)
                offers.setdefault(offer.key, offer)
        for name, why in list(faults.items())[:MOST_TOLD]:
            log.warning("server %r: tool %.100r is set aside: %.300s", server, name, why)
        if len(faults) > MOST_TOLD:
            log.warning("server %r: and %d more", server, len(faults) - MOST_TOLD)
        if kind is Kind.TOOL and self._tools is not None:
            await self._tools.vet(server, list(offers.values()))
        self._catalog.put(server, kind, list(offers.values()), faults)

    async def _entries(self, link: Link, era: Era, kind: Kind) -> list[Entry]:
        """The entries by name; of two with the same name the first is the one that is judged."""
        found: dict[str, dict[str, Raw]] = {}
        most = MOST_TEMPLATES if kind is Kind.TEMPLATE else MOST_OFFERS
        cursor, size = None, 0
        for _ in range(MOST_PAGES):
            entries, cursor = await self._page(link, era, kind, cursor)
            for entry in entries:
                name = _key(kind, entry)
                if name is not None and len(found) < most:
                    found.setdefault(name, entry)
            size += sum(len(memoryview(raw)) for entry in entries for raw in entry.values())
            if cursor is None:
                return list(found.items())
            if size > MOST_BYTES or len(found) >= most:
                break
            await asyncio.sleep(0)
        log.warning("server %r: its list of %s has no end; cut", link.server, kind)
        return list(found.items())

    async def _page(
        self, link: Link, era: Era, kind: Kind, cursor: str | None
    ) -> tuple[list[dict[str, Raw]], str | None]:
        method = METHODS[kind]
        params: dict[str, object] = {} if cursor is None else {"cursor": cursor}
        headers: Headers = ()
        if era is Era.MODERN:
            params["_meta"] = envelope()
            headers = ((mcp.METHOD_HEADER, method.encode()),)
        answer = await link.request(method, params or UNSET, headers)
        error = jsonrpc.error_of(answer)
        if error is not None:
            # Some servers declare a capability and answer its list with an error: nothing offered.
            log.info("server %r answered %s: %s", link.server, method, error.message)
            return [], None
        assert answer.result is not UNSET
        result = jsonrpc.members(answer.result)
        try:
            entries = _list_of_objects.decode(result.get(kind, b"[]"))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"server {link.server!r} sent a misshapen {method}") from None
        following = jsonrpc.text(result.get("nextCursor"))
        return entries, None if following == cursor else following

    async def _faults(self, kind: Kind, entries: Sequence[Entry]) -> dict[str, str]:
        if kind is not Kind.TOOL:
            return {}
        faults: dict[str, str] = {}
        schemas: dict[str, object] = {}
        breath = Breath()
        for name, entry in entries:
            await breath.take(_size(entry))
            if because := _excess(entry):
                faults[name] = because
                continue
            # One tool without a schema for its arguments makes some clients refuse the whole list.
            schemas.setdefault(f"inputSchema {name}", None)
            for member in SCHEMAS:
                if member in entry:
                    try:
                        schemas[f"{member} {name}"] = _schema(entry[member])
                    except MalformedMessage as error:
                        faults[name] = f"{member}: {error}"
        for label, why in (await self._judge.faults(schemas)).items():
            member, _, name = label.partition(" ")
            faults.setdefault(name, f"{member}: {why}")
        return faults


def _size(entry: Mapping[str, Raw]) -> int:
    return sum(map(len, entry.values()))


def _excess(entry: Mapping[str, Raw]) -> str:
    """What a definition has too much of; empty where nothing."""
    if _size(entry) > MOST_TOOL_BYTES:
        return f"it has over {MOST_TOOL_BYTES} bytes"
    return jsonrpc.excess(jsonrpc.to_json(entry), jsonrpc.LIMITS.depth, MOST_TOOL_VALUES)


def _schema(raw: Raw) -> object:
    if len(raw) > MOST_SCHEMA_BYTES:
        raise MalformedMessage(f"it has over {MOST_SCHEMA_BYTES} bytes")
    return jsonrpc.value(raw)


def _key(kind: Kind, entry: dict[str, Raw]) -> str | None:
    try:
        name = jsonrpc.text(entry.get(KEYS[kind]))
    except MalformedMessage:
        return None
    return name if name and len(name) <= LONGEST_NAME else None


def _offer(server: str, kind: Kind, name: str, entry: dict[str, Raw]) -> Offer:
    if KEYS[kind] != "name":
        return Offer(name, server, name, jsonrpc.to_json(entry))
    public = public_name(server, name)
    return Offer(public, server, name, jsonrpc.to_json({**entry, "name": public}))
