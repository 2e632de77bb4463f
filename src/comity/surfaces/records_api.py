"""Keys and parties at /api/keys and /api/parties, for those who may administer them.

A key is in one answer only, to the order that made it; nobody is told it again.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, cast

from comity.kernel.keyring import Keyring, NewKey
from comity.ports import PAGE
from comity.rules.claims import refuse_claims, without_claims
from comity.surfaces.asked import Asked, Room, View
from comity.surfaces.members import moment, refuse_strangers, text
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.parties import Key, Party, PartyKind

LONGEST_TEXT: Final = 1000
MOST_PERMISSIONS: Final = 1000
GRACE: Final = timedelta(days=1)
_MOST_SECONDS: Final = 366 * 86_400
_KEY_MEMBERS: Final = frozenset(
    {
        "party",
        "label",
        "permissions",
        "requests_per_minute",
        "requests_per_hour",
        "not_before",
        "expires_at",
    }
)


class RecordsApi:
    """What is kept of who takes part."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    @property
    def rooms(self) -> dict[str, Room]:
        return {"keys": self.keys, "parties": self.parties}

    async def keys(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        by = asked.actor.party
        match asked.method, asked.place:
            case "GET", ():
                listed = await self._keyring.keys(
                    asked.query.get("party", ""), asked.query.get("cursor", "")
                )
                return _page("keys", [key_view(key) for key in listed], asked.query)
            case "POST", ():
                return _made(await self._keyring.create(by, _wanted(without_claims(asked.body))))
            case "POST", (key_id, "rotate"):
                grace = _number(asked.body, "grace_seconds", _MOST_SECONDS)
                length = GRACE if grace is None else timedelta(seconds=grace)
                return _made(await self._keyring.rotate(by, key_id, length))
            case "POST", (key_id, "revoke"):
                return key_view(await self._keyring.revoke(by, key_id))
            case _:
                raise _nothing_here()

    async def parties(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        by = asked.actor.party
        match asked.method, asked.place:
            case "GET", ():
                listed = await self._keyring.parties(asked.query.get("cursor", ""))
                return _page("parties", [party_view(party) for party in listed], asked.query)
            case "POST", ():
                return party_view(await self._keyring.add(by, _party(without_claims(asked.body))))
            case "POST", (*named, ("disable" | "enable") as deed):
                # Of some issuers' parties the name itself holds a slash.
                done = await self._keyring.disable(by, "/".join(named), deed == "disable")
                return party_view(done)
            case _:
                raise _nothing_here()


def key_view(key: Key) -> dict[str, object]:
    """All that anybody is told of a key; its MAC is of no use to people."""
    return {
        "id": key.id,
        "party": key.party,
        "label": key.label,
        "permissions": key.permissions,
        "requests_per_minute": key.requests_per_minute,
        "requests_per_hour": key.requests_per_hour,
        "created_by": key.created_by,
        "created_at": key.created_at,
        "not_before": key.not_before,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used": key.last_used,
    }


def party_view(party: Party) -> dict[str, object]:
    return {
        "id": party.id,
        "kind": party.kind,
        "label": party.label,
        "disabled": party.disabled,
        "created_by": party.created_by,
        "created_at": party.created_at,
    }


def _made(made: NewKey) -> View:
    return {"key": made.whole, **key_view(made.record)}


def _page(name: str, listed: list[dict[str, object]], query: Mapping[str, str]) -> View:
    page: dict[str, object] = {name: listed}
    if len(listed) >= PAGE and "party" not in query:
        page["next"] = listed[-1]["id"]
    return page


def _wanted(body: Mapping[str, object]) -> Key:
    refuse_strangers(body, _KEY_MEMBERS)
    return Key(
        "",
        text(body, "party", LONGEST_TEXT),
        b"",
        label=text(body, "label", LONGEST_TEXT, ""),
        permissions=_texts(body, "permissions"),
        requests_per_minute=_number(body, "requests_per_minute"),
        requests_per_hour=_number(body, "requests_per_hour"),
        not_before=moment(body, "not_before"),
        expires_at=moment(body, "expires_at"),
    )


def _party(body: Mapping[str, object]) -> Party:
    refuse_strangers(body, {"id", "kind", "label"})
    kind = text(body, "kind", LONGEST_TEXT, PartyKind.AGENT)
    if kind not in (PartyKind.AGENT, PartyKind.PERSON, PartyKind.SERVER):
        raise MalformedMessage("kind must be agent, person or server", INVALID_PARAMS)
    return Party(
        text(body, "id", LONGEST_TEXT), PartyKind(kind), text(body, "label", LONGEST_TEXT, "")
    )


def _texts(body: Mapping[str, object], name: str) -> tuple[str, ...]:
    found = body.get(name, [])
    texts: list[Any] = cast("list[Any]", found) if isinstance(found, list) else [None]
    if len(texts) > MOST_PERMISSIONS or not all(isinstance(each, str) for each in texts):
        raise MalformedMessage(f"{name} must be a list of texts", INVALID_PARAMS)
    return tuple(texts)


def _number(body: Mapping[str, object], name: str, most: int = 10**9) -> int | None:
    found = body.get(name)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
        raise MalformedMessage(f"{name} must be a whole number up to {most}", INVALID_PARAMS)
    return found


def _nothing_here() -> MalformedMessage:
    return MalformedMessage("there is no such address under /api", NOTHING_HERE)
