"""Operator API for principals and their API keys.

The response to the request that creates a key contains the key. No later response does.
"""

from datetime import timedelta
from typing import Annotated, Final, Literal

from msgspec import Meta

from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRoutes, Permission, View
from comity.http.api_input import (
    CursorQuery,
    EmptyBody,
    RequestBody,
    RequestQuery,
    ShortText,
    ZonedTime,
)
from comity.identity.keys import IssuedKey, KeyAdmin
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import PrincipalKind
from comity.storage.changes import PAGE
from comity.storage.values import to_optional_utc

ROTATION_GRACE: Final = timedelta(days=1)
MAX_PERMISSIONS: Final = 1000

type RequestRate = Annotated[int, Meta(ge=0, le=10**9)]


class KeyPageQuery(RequestQuery, frozen=True):
    """Which keys to list."""

    principal: str | None = None
    cursor: str = ""


class NewKeyBody(RequestBody, frozen=True):
    """The key to make."""

    principal: ShortText
    label: ShortText = ""
    permissions: Annotated[tuple[str, ...], Meta(max_length=MAX_PERMISSIONS)] = ()
    requests_per_minute: RequestRate | None = None
    requests_per_hour: RequestRate | None = None
    not_before: ZonedTime | None = None
    expires_at: ZonedTime | None = None

    def to_key(self) -> ApiKey:
        return ApiKey(
            "",
            self.principal,
            b"",
            label=self.label,
            permissions=self.permissions,
            requests_per_minute=self.requests_per_minute,
            requests_per_hour=self.requests_per_hour,
            not_before=to_optional_utc(self.not_before),
            expires_at=to_optional_utc(self.expires_at),
        )


class KeyRotationBody(RequestBody, frozen=True):
    """How long the old key remains valid beside the new one."""

    grace_seconds: Annotated[int, Meta(ge=0, le=366 * 86_400)] | None = None

    @property
    def grace(self) -> timedelta:
        seconds = self.grace_seconds
        return ROTATION_GRACE if seconds is None else timedelta(seconds=seconds)


class NewPrincipalBody(RequestBody, frozen=True):
    """The principal to create."""

    id: ShortText
    kind: Literal["agent", "person", "server"] = "agent"
    label: ShortText = ""


class RecordsApi:
    """Routes with which an operator manages principals and keys."""

    def __init__(self, keyring: KeyAdmin) -> None:
        self._keyring = keyring

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        # The ids that some issuers give to principals contain a slash.
        party = "/api/principals/{principal:path}"
        disable, enable = self._switch(disabled=True), self._switch(disabled=False)
        return (
            ApiRoute("GET", "/api/keys", read, self._list_keys, KeyPageQuery),
            ApiRoute("POST", "/api/keys", write, self._create_key, NewKeyBody),
            ApiRoute("POST", "/api/keys/{key}/rotate", write, self._rotate_key, KeyRotationBody),
            ApiRoute("POST", "/api/keys/{key}/revoke", write, self._revoke_key, EmptyBody),
            ApiRoute("GET", "/api/principals", read, self._list_principals, CursorQuery),
            ApiRoute("POST", "/api/principals", write, self._add_principal, NewPrincipalBody),
            ApiRoute("POST", f"{party}/disable", write, disable, EmptyBody),
            ApiRoute("POST", f"{party}/enable", write, enable, EmptyBody),
        )

    async def _list_keys(self, request: ApiRequest[KeyPageQuery]) -> View:
        wanted = request.input
        listed = await self._keyring.keys(wanted.principal or "", wanted.cursor)
        views = [key_view(key) for key in listed]
        return _page("keys", views) if wanted.principal is None else {"keys": views}

    async def _create_key(self, request: ApiRequest[NewKeyBody]) -> View:
        return _made(await self._keyring.create(request.actor.party, request.input.to_key()))

    async def _rotate_key(self, request: ApiRequest[KeyRotationBody]) -> View:
        by, key = request.actor.party, request.path["key"]
        return _made(await self._keyring.rotate(by, key, request.input.grace))

    async def _revoke_key(self, request: ApiRequest[EmptyBody]) -> View:
        return key_view(await self._keyring.revoke(request.actor.party, request.path["key"]))

    async def _list_principals(self, request: ApiRequest[CursorQuery]) -> View:
        listed = await self._keyring.parties(request.input.cursor)
        return _page("principals", [party_view(party) for party in listed])

    async def _add_principal(self, request: ApiRequest[NewPrincipalBody]) -> View:
        wanted = request.input
        added = Principal(wanted.id, PrincipalKind(wanted.kind), wanted.label)
        return party_view(await self._keyring.add(request.actor.party, added))

    def _switch(self, *, disabled: bool) -> ApiHandler[EmptyBody]:
        async def handle(request: ApiRequest[EmptyBody]) -> View:
            by, party = request.actor.party, request.path["principal"]
            return party_view(await self._keyring.disable(by, party, disabled))

        return handle


def key_view(key: ApiKey) -> dict[str, object]:
    """The public view of a key, without its MAC."""
    return {
        "id": key.id,
        "principal": key.party,
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


def party_view(party: Principal) -> dict[str, object]:
    return {
        "id": party.id,
        "kind": party.kind,
        "label": party.label,
        "disabled": party.disabled,
        "created_by": party.created_by,
        "created_at": party.created_at,
    }


def _made(made: IssuedKey) -> View:
    return {"key": made.whole, **key_view(made.record)}


def _page(name: str, listed: list[dict[str, object]]) -> View:
    page: dict[str, object] = {name: listed}
    if len(listed) >= PAGE:
        page["next"] = listed[-1]["id"]
    return page
