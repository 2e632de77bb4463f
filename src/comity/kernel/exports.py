"""What the registry tells of its tools: the catalogue, one tool's export, OpenAPI. (REG)

All of it is told from memory, and only of what the gate shows to whoever asks. A catalogue may be
long: after some tools everybody else has a turn. (D-88)
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from comity.kernel.catalog import Kind, Offer
from comity.kernel.gate import Gate
from comity.kernel.servers import Servers
from comity.rules import catalogue
from comity.rules.catalogue import Tool
from comity.rules.examples import candidates
from comity.rules.openapi import Document
from comity.rules.refusals import Refusal
from comity.rules.signatures import CATALOGUE_VERSION, Schema
from comity.wire.grants import CALL, LIST, READ
from comity.wire.parties import Actor

BREATH: Final = 25
MOST_EXAMPLES: Final = 3
OPENAPI_PATH: Final = "/openapi.json"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tools somebody wants to be told of."""

    actor: Actor
    server: str | None = None
    cursor: str | None = None


def reader(actor: Actor) -> Actor:
    """Somebody as one who only looks: for that a key's permission to read a tool is enough."""
    bounds = actor.permissions or ()
    readable = [(CALL, target) for verb, target in bounds if verb in (LIST, READ)]
    return replace(actor, permissions=(*bounds, *readable)) if readable else actor


class Exports:
    """Tells of tools; `is_open` is whether some need no credentials to call them."""

    def __init__(self, gate: Gate, servers: Servers, *, is_open: bool = False) -> None:
        self._gate = gate
        self._servers = servers
        self._is_open = is_open

    async def catalogue(self, wanted: Wanted) -> Schema:
        """A page of the catalogue."""
        definitions, following = self._gate.catalogue(
            wanted.actor, self._shown_to(wanted), wanted.cursor
        )
        tools = [
            catalogue.entry(offer.server, offer.name, tool)
            async for offer, tool in self._read(definitions)
        ]
        told: Schema = {
            "tools": tools,
            "version": CATALOGUE_VERSION,
            "generated_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return told if following is None else {**told, "next": following}

    async def export(self, offer: Offer) -> Schema:
        """One tool: its schema, arguments that pass it, and what is known of it."""
        tool = catalogue.read_tool(offer.definition)
        schema = tool.get("inputSchema", {})
        return {
            "schema": schema,
            "examples": await self._examples(offer, schema),
            "metadata": catalogue.metadata_of(offer.server, tool, self._about(offer.server)),
        }

    async def openapi(self, wanted: Wanted) -> Schema:
        """A document of one page of tools; where there are more, it names the next."""
        definitions, following = self.page(Kind.TOOL, wanted)
        document = Document()
        async for offer, tool in self._read(definitions):
            metadata = catalogue.metadata_of(offer.server, tool, {})
            document.add({**tool, **catalogue.entry(offer.server, offer.name, tool), **metadata})
        return document.whole(is_open=self._is_open, following=_place(wanted.server, following))

    def page(self, kind: Kind, wanted: Wanted) -> tuple[list[bytes], str | None]:
        """Definitions as they are, and where the next ones follow."""
        return self._gate.page(wanted.actor, kind, self._shown_to(wanted), wanted.cursor)

    def _shown_to(self, wanted: Wanted) -> Callable[[str], bool]:
        def shown(server: str) -> bool:
            return wanted.server in (None, server) and self._servers.get(server) is not None

        return shown

    def _about(self, name: str) -> Tool:
        """What a server says of itself."""
        server = self._servers.get(name)
        said = {} if server is None else server.reached.hello or server.reached.discovered
        return catalogue.read_tool(bytes(said.get("serverInfo", b"{}")))

    async def _read(self, definitions: list[bytes]) -> AsyncGenerator[tuple[Offer, Tool]]:
        for number, definition in enumerate(definitions):
            if number % BREATH == 0:
                await asyncio.sleep(0)
            tool = catalogue.read_tool(definition)
            name = tool.get("name")
            offer = self._gate.catalog.named(Kind.TOOL, name) if isinstance(name, str) else None
            # Between two turns its server may have gone.
            if offer is not None:
                yield offer, tool

    async def _examples(self, offer: Offer, schema: object) -> list[object]:
        """Candidates that the tool would really be called with."""
        found: list[object] = []
        for candidate in candidates(schema):
            await asyncio.sleep(0)
            outcome = self._gate.inspect(offer, candidate)
            if outcome is not None and not isinstance(outcome, Refusal):
                outcome = await outcome
            if outcome is None:
                found.append(candidate)
            if len(found) == MOST_EXAMPLES:
                break
        return found


def _place(server: str | None, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    asked: Mapping[str, str] = {"cursor": cursor} | ({} if server is None else {"server": server})
    return f"{OPENAPI_PATH}?{urlencode(asked)}"
