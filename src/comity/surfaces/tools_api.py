"""Tools at /api/tools: for an operator all of them, for anybody else those that it may use."""

from collections.abc import Mapping

from comity.kernel.catalog import Kind, Offer
from comity.kernel.gate import Gate
from comity.kernel.grants import Judge
from comity.kernel.servers import Servers
from comity.surfaces.asked import Asked, Room, View
from comity.wire import jsonrpc
from comity.wire.errors import NOTHING_HERE, MalformedMessage
from comity.wire.grants import ADMIN_READ, Effect
from comity.wire.parties import Actor


class ToolsApi:
    """What can be called, and how each of it wants to be called."""

    def __init__(self, servers: Servers, gate: Gate, judge: Judge) -> None:
        self._servers = servers
        self._gate = gate
        self._catalog = gate.catalog
        self._judge = judge

    @property
    def rooms(self) -> dict[str, Room]:
        return {"tools": self.tools}

    async def tools(self, asked: Asked) -> View:
        match asked.method, asked.place:
            case "GET", ():
                return self._page(asked.actor, asked.query)
            case "GET", (name,):
                return self._tool(asked.actor, name)
            case _:
                raise MalformedMessage("there is no such address under /api", NOTHING_HERE)

    def _oversees(self, actor: Actor) -> bool:
        return self._judge.judge(actor, ADMIN_READ, "", "").effect is Effect.ALLOW

    def _page(self, actor: Actor, query: Mapping[str, str]) -> View:
        """One page; a page may be empty and have a next one, since what is sought may be there."""
        wanted, cursor = query.get("server"), query.get("cursor")
        oversees = self._oversees(actor)
        if wanted is not None and not self._is_there(actor, wanted, oversees):
            raise MalformedMessage(f"there is no server {wanted!r:.200}", NOTHING_HERE)

        def is_wanted(server: str) -> bool:
            return wanted in (None, server)

        if oversees:
            definitions, following = self._catalog.page(Kind.TOOL, is_wanted, cursor)
        else:
            definitions, following = self._gate.page(actor, Kind.TOOL, is_wanted, cursor)
        words = query.get("search", "").casefold().split()
        listed = [self._brief(definition) for definition in definitions]
        found: dict[str, object] = {"tools": [tool for tool in listed if _has(tool, words)]}
        return found if following is None else {**found, "next": following}

    def _is_there(self, actor: Actor, server: str, oversees: bool) -> bool:
        return self._servers.get(server) is not None and (
            oversees or self._gate.knows(actor, server)
        )

    def _brief(self, definition: bytes) -> dict[str, object]:
        members = jsonrpc.members(definition)
        name = jsonrpc.text(members.get("name")) or ""
        offer = self._catalog.named(Kind.TOOL, name)
        return {
            "name": name,
            "server": "" if offer is None else offer.server,
            "tool": "" if offer is None else offer.name,
            "title": jsonrpc.text(members.get("title")),
            "description": jsonrpc.text(members.get("description")),
            "annotations": members.get("annotations"),
        }

    def _tool(self, actor: Actor, name: str) -> View:
        offer = self._found(actor, name)
        if offer is None:
            raise MalformedMessage(f"there is no tool {name!r:.200}", NOTHING_HERE)
        return {
            "name": offer.key,
            "server": offer.server,
            "tool": offer.name,
            "definition": jsonrpc.members(offer.definition),
        }

    def _found(self, actor: Actor, name: str) -> Offer | None:
        if self._oversees(actor):
            return self._catalog.find(Kind.TOOL, name)
        named = self._catalog.named(Kind.TOOL, name)
        holders = self._catalog.holders(Kind.TOOL, name) if named is None else [named]
        seen = [offer for offer in holders if self._gate.shows(actor, Kind.TOOL, offer)]
        return seen[0] if len(seen) == 1 else None


def _has(tool: Mapping[str, object], words: list[str]) -> bool:
    text = " ".join(str(tool[key] or "") for key in ("name", "title", "description")).casefold()
    return all(word in text for word in words)
