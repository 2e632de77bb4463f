"""Tools in any number for the search bench: real ones, and others made from them by variation."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.search_sets import collections
from comity.catalog.catalog import Catalog
from comity.catalog.search.tool_index import ServerDescription
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.protocol import public_name

PER_SERVER = 20


@dataclass(frozen=True, slots=True)
class Made:
    """One tool: the server it stands on, its name, and its definition without that."""

    server: int
    name: str
    description: str
    schema: dict[str, object]


def tools(folders: Sequence[Path], count: int) -> Iterator[Made]:
    """The same tools each time. From the second round on each has a word and a sentence of others,
    so that words stay as frequent as they are, and no two tools are the same."""
    real = [
        (str(row["name"]), str(row["description"] or ""), row["inputSchema"])
        for collection in collections(folders)
        for row in collection.tools()
    ]
    for number in range(count):
        turn, at = divmod(number, len(real))
        name, description, schema = real[at]
        if turn:
            other = real[(at * 7 + turn * 131) % len(real)]
            name = f"{name}_{other[0].replace('.', '_').split('_')[-1]}_{turn}"[:60]
            description = f"{description} {other[1]}"[:600]
        yield Made(number // PER_SERVER, name, description, schema)


def queries(folders: Sequence[Path], count: int) -> list[str]:
    """What people and agents asked, some of each set."""
    sets = [
        [str(row["query"]) for row in each.questions(name)]
        for each in collections(folders)
        for name in each.sets
    ]
    share = -(-count // len(sets))
    return [query for each in sets for query in each[:share]][:count]


def offer_of(made: Made) -> CatalogEntry:
    server = f"server-{made.server:05}"
    definition = {
        "name": public_name(server, made.name),
        "description": made.description,
        "inputSchema": made.schema,
    }
    return CatalogEntry(
        public_name(server, made.name), server, made.name, json.dumps(definition).encode()
    )


def fill(catalog: Catalog, folders: Sequence[Path], count: int) -> None:
    """Put so many tools on the shelves of their servers."""
    shelf: list[CatalogEntry] = []
    for made in tools(folders, count):
        offer = offer_of(made)
        if shelf and shelf[-1].server != offer.server:
            catalog.put(shelf[-1].server, EntryKind.TOOL, shelf)
            shelf = []
        shelf.append(offer)
    if shelf:
        catalog.put(shelf[-1].server, EntryKind.TOOL, shelf)


def words_of(server: str) -> ServerDescription:
    return ServerDescription(server, "")
