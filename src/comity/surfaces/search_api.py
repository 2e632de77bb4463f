"""The search at /api/search: for everybody who is known, among the tools that it may call."""

from collections.abc import Mapping
from typing import Final

from comity.kernel.finding import Finder, Found
from comity.rules.search import MOST_FOUND, USUALLY_FOUND, Query, Strategy
from comity.surfaces.asked import Asked, Room, View
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.security import Risk

ABOUT_LETTERS: Final = 500


class SearchApi:
    """What was found, what speaks for it, and in which categories there is anything."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    @property
    def rooms(self) -> dict[str, Room]:
        return {"search": self.search}

    async def search(self, asked: Asked) -> View:
        match asked.method, asked.place:
            case "GET", ():
                return await self._found(asked)
            case "GET", ("categories",):
                found = await self._finder.categories(asked.actor)
                return {"categories": [each.told() for each in found.values()]}
            case _:
                raise MalformedMessage("there is no such address under /api", NOTHING_HERE)

    async def _found(self, asked: Asked) -> View:
        findings = await self._finder.find(asked.actor, query_from(asked.query))
        return {
            "tools": [self._brief(found) for found in findings.found],
            "total_available": findings.total,
            "search_strategy": findings.strategy,
            "fallback_strategy": findings.fallback,
            "query_time_ms": round(findings.seconds * 1000, 1),
        }

    def _brief(self, found: Found) -> View:
        known = self._finder.facts(found.offer)
        return {
            "name": found.offer.key,
            "server": found.offer.server,
            "tool": found.offer.name,
            "relevance_score": found.score,
            "why": found.parts,
            "title": known.searchable.title,
            "description": known.searchable.description[:ABOUT_LETTERS],
            "categories": known.searchable.categories,
            "keywords": known.keywords,
            "security": {
                "risk_level": known.risk,
                "permissions_required": known.permissions,
            },
        }


def query_from(said: Mapping[str, str]) -> Query:
    """What a query string asks for; raises MalformedMessage where that cannot be."""
    text = said.get("query", "")
    if not text.strip() and "category" not in said:
        raise MalformedMessage("say what is sought, as ?query=read+a+file", INVALID_PARAMS)
    risk = said.get("risk_level_max")
    return Query(
        text,
        _one_of(Strategy, said.get("strategy", Strategy.HYBRID)),
        _most(said.get("most", str(USUALLY_FOUND))),
        _names(said, "category"),
        None if risk is None else _one_of(Risk, risk),
        said.get("status"),
        _names(said, "server"),
    )


def _names(said: Mapping[str, str], member: str) -> tuple[str, ...]:
    return tuple(name for name in said.get(member, "").split(",") if name)


def _one_of[Choice: (Strategy, Risk)](choices: type[Choice], said: str) -> Choice:
    try:
        return choices(said)
    except ValueError:
        known = ", ".join(choices)
        raise MalformedMessage(f"{said!r:.100} is none of {known}", INVALID_PARAMS) from None


def _most(said: str) -> int:
    if said.isascii() and said.isdigit() and 1 <= int(said[:9]) <= MOST_FOUND:
        return int(said)
    raise MalformedMessage(f"`most` is a number from 1 to {MOST_FOUND}", INVALID_PARAMS)
