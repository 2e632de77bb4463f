"""What live servers declare, which of it is enabled and by whose word, at /api/features."""

from collections.abc import Iterable
from typing import Final, Protocol

from comity.kernel.live.hosted import Hosted
from comity.rules.claims import refuse_claims
from comity.rules.live_policy import UNDECIDED
from comity.rules.permissions import SUBJECT
from comity.surfaces.asked import Asked, Room, View
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.features import LONGEST_NAME, Bounds, FeatureSet
from comity.wire.grants import FEATURE, Effect, Grant
from comity.wire.lifecycle import moment
from comity.wire.parties import Actor

LONGEST_WORDS: Final = 1000
_EFFECTS: Final = {"enable": Effect.ALLOW, "disable": Effect.DENY}


class Hosts(Protocol):
    """The live servers that are there."""

    def all(self) -> Iterable[Hosted]: ...
    def get(self, server: str) -> Hosted | None: ...


class Administered(Protocol):
    """Who writes grants down, in the name of whoever asks for it and may."""

    async def put(self, actor: Actor, grant: Grant) -> Grant: ...
    async def revoke(self, actor: Actor, subject: str, verb: str, target: str) -> bool: ...


class FeaturesApi:
    """What an operator decides of what servers do by themselves."""

    def __init__(self, hosts: Hosts, grants: Administered) -> None:
        self._hosts = hosts
        self._grants = grants

    @property
    def rooms(self) -> dict[str, Room]:
        return {"features": self.features}

    async def features(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        match asked.method, asked.place:
            case "GET", ():
                named = asked.query.get("server")
                found = [each for each in self._hosts.all() if named in (None, each.server)]
                return {"servers": [shown(each) for each in found]}
            case "POST", ("enable" | "disable" | "forget" as deed,):
                return await self._decide(asked, deed)
            case _:
                raise MalformedMessage("there is nothing here; /api/features is", NOTHING_HERE)

    async def _decide(self, asked: Asked, deed: str) -> View:
        server, name = _text(asked, "server"), _text(asked, "feature")
        subject, effect = SUBJECT + server, _EFFECTS.get(deed)
        if effect is None:
            await self._grants.revoke(asked.actor, subject, FEATURE, name)
        else:
            said = str(asked.body.get("justification") or "")[:LONGEST_WORDS]
            grant = Grant(subject, FEATURE, name, effect, justification=said)
            await self._grants.put(asked.actor, grant)
        hosted = self._hosts.get(server)
        return {"servers": [] if hosted is None else [shown(hosted)]}


def shown(hosted: Hosted) -> dict[str, object]:
    """One live server, with each of its feature sets."""
    declared = hosted.declared
    return {
        "server": hosted.server,
        "era": "modern" if hosted.is_modern else "handshake",
        "version": declared.version,
        "features": [
            {
                "feature": name,
                "description": each.description,
                "uses": sorted(each.uses),
                "scoped": each.is_scoped,
                "rollback": each.has_rollback,
                **_standing(hosted, name),
                **_bounds(hosted, each),
            }
            for name, each in sorted(declared.sets.items())
        ],
    }


def _standing(hosted: Hosted, name: str) -> dict[str, object]:
    found = hosted.standings.get(name, UNDECIDED)
    until = None if found.until is None else moment(found.until)
    return {
        "enabled": found.is_enabled,
        "by": found.by,
        "because": found.because,
        "until": until,
    }


def _bounds(hosted: Hosted, each: FeatureSet) -> dict[str, object]:
    bounds: Bounds | None = hosted.policy.scopes.get(each.name)
    if bounds is None:
        return {}
    return {"whitelist": list(bounds.whitelist), "blacklist": list(bounds.blacklist)}


def _text(asked: Asked, name: str) -> str:
    found = asked.body.get(name)
    if not isinstance(found, str) or not found or len(found) > LONGEST_NAME:
        raise MalformedMessage(f"{name} must be a name", INVALID_PARAMS)
    return found
