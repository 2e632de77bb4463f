"""Tools in any number for the search bench: real ones, and others made from them by variation."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.search_quality import COMMITTED, folder_of, rows
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.tool_index import ServerWords
from comity.rules.names import public_name

PER_SERVER = 20
_NAMES = ("livemcp", "bfcl", "seal")
_QUERIES = ("livemcp.step", "livemcp.agent", "bfcl", "seal.out")


@dataclass(frozen=True, slots=True)
class Made:
    """One tool: the server it stands on, its name, and its definition without that."""

    server: int
    name: str
    description: str
    schema: dict[str, object]


def tools(count: int) -> Iterator[Made]:
    """The same tools each time. From the second round on each has a word and a sentence of others,
    so that words stay as frequent as they are, and no two tools are the same."""
    real = [tool for name in _NAMES for tool in _real(name)]
    for number in range(count):
        turn, at = divmod(number, len(real))
        name, description, schema = real[at]
        if turn:
            other = real[(at * 7 + turn * 131) % len(real)]
            name = f"{name}_{other[0].replace('.', '_').split('_')[-1]}_{turn}"[:60]
            description = f"{description} {other[1]}"[:600]
        yield Made(number // PER_SERVER, name, description, schema)


def queries(count: int) -> list[str]:
    """What people and agents really asked, some of each set."""
    sets = [[str(row["query"]) for row in _rows(f"{name}.queries")] for name in _QUERIES]
    there = [each for each in sets if each]
    share = -(-count // len(there))
    return [query for each in there for query in each[:share]][:count]


def offer_of(made: Made) -> Offer:
    server = f"server-{made.server:05}"
    definition = {
        "name": public_name(server, made.name),
        "description": made.description,
        "inputSchema": made.schema,
    }
    return Offer(public_name(server, made.name), server, made.name, json.dumps(definition).encode())


def fill(catalog: Catalog, count: int) -> None:
    """Put so many tools on the shelves of their servers."""
    shelf: list[Offer] = []
    for made in tools(count):
        offer = offer_of(made)
        if shelf and shelf[-1].server != offer.server:
            catalog.put(shelf[-1].server, Kind.TOOL, shelf)
            shelf = []
        shelf.append(offer)
    if shelf:
        catalog.put(shelf[-1].server, Kind.TOOL, shelf)


def words_of(server: str) -> ServerWords:
    return ServerWords(server, "")


def _real(name: str) -> Iterator[tuple[str, str, dict[str, object]]]:
    for tool in _rows(f"{name}.tools"):
        yield tool["name"], tool["description"] or "", tool["inputSchema"]


def _rows(name: str) -> Iterator[dict[str, Any]]:
    """From the whole sets, where they are; a part of them lies here."""
    yield from rows(folder_of(None) or COMMITTED, name)
