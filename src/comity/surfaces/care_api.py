"""Permissions of servers and definitions of tools, at /api/permissions and /api/pins."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, cast

from comity.kernel.catalog import Offer
from comity.kernel.permits import Permit
from comity.kernel.toolcare import ToolCare
from comity.rules.claims import refuse_claims
from comity.rules.looks import Finding, revealed
from comity.rules.permissions import SUBJECT, full_names, is_writable, risk_of
from comity.rules.pins import differences
from comity.rules.standings import State
from comity.surfaces.asked import Asked, Room, View
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.grants import PERMISSION, Effect, Grant
from comity.wire.parties import Actor

MOST_SHOWN: Final = 1000
BREATH: Final = 200
LONGEST_SECONDS: Final = 366 * 86_400
LONGEST_WORDS: Final = 1000


class Administered(Protocol):
    """Who writes grants down, in the name of whoever asks for it and may."""

    async def put(self, actor: Actor, grant: Grant) -> Grant: ...
    async def revoke(self, actor: Actor, subject: str, verb: str, target: str) -> bool: ...


class Known(Protocol):
    """The servers that there are."""

    def names(self) -> Iterable[str]: ...


class CareApi:
    """What an operator decides of servers and of their tools."""

    def __init__(self, care: ToolCare, servers: Known, grants: Administered) -> None:
        self._care = care
        self._servers = servers
        self._grants = grants

    @property
    def rooms(self) -> dict[str, Room]:
        return {"permissions": self.permissions, "pins": self.pins}

    async def permissions(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        match asked.method, asked.place:
            case "GET", ():
                named = asked.query.get("server")
                servers = self._servers.names() if named is None else [self._known(named)]
                permits = [self._care.permits.of(server) for server in servers]
                return {"permissions": [each for permit in permits for each in needs_of(permit)]}
            case "POST", ("approve",):
                return await self._decide(asked, Effect.ALLOW)
            case "POST", ("deny",):
                return await self._decide(asked, Effect.DENY)
            case "POST", ("forget",):
                return await self._decide(asked, None)
            case _:
                raise _nothing_here()

    async def pins(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        match asked.method, asked.place:
            case "GET", ():
                return await self._listed(asked.query)
            case "GET", (server, tool):
                return await self._compared(self._known(server), tool)
            case "POST", ("accept",):
                server = self._known(_text(asked.body, "server"))
                wanted = asked.body.get("tools")
                digests = cast("dict[str, object]", wanted) if isinstance(wanted, dict) else {}
                named = {name: str(digest) for name, digest in digests.items()}
                accepted = await self._care.accept(server, named, asked.actor.party)
                return {"server": server, "accepted": accepted}
            case _:
                raise _nothing_here()

    async def _decide(self, asked: Asked, effect: Effect | None) -> View:
        server = self._known(_text(asked.body, "server"))
        names = full_names([_text(asked.body, "permission")])
        subject = SUBJECT + server
        for name in names:
            if not is_writable(name):
                raise MalformedMessage(f"no permission can be named {name!r:.200}", INVALID_PARAMS)
            if effect is None:
                await self._grants.revoke(asked.actor, subject, PERMISSION, name)
            else:
                why = _words(asked.body, "justification")
                ends = _ends(asked.body)
                grant = Grant(subject, PERMISSION, name, effect, justification=why, expires_at=ends)
                await self._grants.put(asked.actor, grant)
        permit = self._care.permits.of(server)
        await self._care.permits.settle()
        return {"permissions": [each for each in needs_of(permit) if each["permission"] in names]}

    async def _listed(self, query: Mapping[str, str]) -> View:
        """The tools that cannot be used as they are; or all of them, as far as one page goes."""
        named, everything = query.get("server"), query.get("all") == "true"
        servers = self._servers.names() if named is None else [self._known(named)]
        found: list[View] = []
        number = 0
        for server in list(servers):
            for offer in self._care.offers_of(server):
                number += 1
                if number % BREATH == 0:
                    await asyncio.sleep(0)
                if everything or self._care.standing(offer).state is not State.ACCEPTED:
                    found.append(self._brief(offer))
                if len(found) >= MOST_SHOWN:
                    return {"tools": found, "more": True}
        return {"tools": found, "more": False}

    def _brief(self, offer: Offer) -> dict[str, object]:
        standing = self._care.standing(offer)
        accepted = self._care.pins.get(offer.server, offer.name)
        return {
            "server": offer.server,
            "tool": offer.name,
            "name": offer.key,
            "state": standing.state,
            "digest": standing.digest,
            "risk": standing.risk,
            "permissions": list(standing.needs),
            "validators": list(standing.validators),
            "advised": list(standing.advised),
            "findings": [_finding(each) for each in standing.findings],
            "accepted": None
            if accepted is None
            else {"digest": accepted.digest, "by": accepted.by, "at": accepted.at},
        }

    async def _compared(self, server: str, tool: str) -> View:
        """One tool with what is other in it than was accepted, and with whatever it resembles."""
        offer = next((each for each in self._care.offers_of(server) if each.name == tool), None)
        if offer is None:
            raise MalformedMessage(f"server {server!r} lists no tool {tool!r:.200}", NOTHING_HERE)
        before = await self._care.pins.definition(server, tool)
        after = self._care.written(offer)
        told = [] if before is None or not after else differences(before, after)
        shadows = [_finding(each) for each in self._care.shadows(offer)]
        return {
            **self._brief(offer),
            "shown": revealed(after.decode()),
            "changes": [
                {"at": each.pointer, "before": each.before, "after": each.after} for each in told
            ],
            "shadows": shadows,
        }

    def _known(self, server: str) -> str:
        if server not in set(self._servers.names()):
            raise MalformedMessage(f"there is no server {server!r:.200}", NOTHING_HERE)
        return server


def needs_of(permit: Permit) -> list[dict[str, object]]:
    """What a server needs, and how each of it stands."""
    return [
        {
            "server": permit.server,
            "permission": name,
            "risk": risk_of(name),
            "decision": each.decision,
            "by": each.by,
            "because": each.because,
            "expires_at": each.expires_at,
            "declared": name in permit.declared,
        }
        for name, each in permit.decided.items()
    ]


def _finding(found: Finding) -> dict[str, str]:
    return {"look": str(found.look), "where": found.where, "what": found.what}


def _text(body: Mapping[str, object], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise MalformedMessage(f"{name} is missing", INVALID_PARAMS)
    return value


def _words(body: Mapping[str, object], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > LONGEST_WORDS:
        raise MalformedMessage(f"{name} is a text of {LONGEST_WORDS} at most", INVALID_PARAMS)
    return value


def _ends(body: Mapping[str, object]) -> datetime | None:
    """When a decision ends, from how long it is to last; None for never."""
    seconds = body.get("expires_in_seconds")
    if seconds is None:
        return None
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise MalformedMessage("expires_in_seconds is a whole number", INVALID_PARAMS)
    if not 0 < seconds <= LONGEST_SECONDS:
        because = f"expires_in_seconds is between 1 and {LONGEST_SECONDS}"
        raise MalformedMessage(because, INVALID_PARAMS)
    return datetime.now(UTC) + timedelta(seconds=seconds)


def _nothing_here() -> MalformedMessage:
    return MalformedMessage("there is no such address under /api", NOTHING_HERE)
