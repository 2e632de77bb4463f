"""Catalog entries: a tool, resource or prompt of a server, as the catalog holds it."""

from dataclasses import dataclass
from enum import StrEnum


class EntryKind(StrEnum):
    """The kinds of catalog entries, by the member of the list result that holds them."""

    TOOL = "tools"
    PROMPT = "prompts"
    RESOURCE = "resources"
    TEMPLATE = "resourceTemplates"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One catalog entry: its public key, its name at its server, and its definition."""

    key: str
    server: str
    name: str
    definition: bytes
