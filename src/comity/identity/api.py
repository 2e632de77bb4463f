"""Operator API for principals and their API keys.

The response to the request that creates a key contains the key. No later response does.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, NotRequired, TypedDict

from msgspec import Meta

from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import (
    CursorQuery,
    EmptyBody,
    EmptyQuery,
    RequestBody,
    RequestQuery,
    ShortText,
    ZonedTime,
)
from comity.identity.keys import IssuedKey, KeyAdmin
from comity.identity.principals import MAX_GROUPS, ApiKey, Principal
from comity.mcp.actors import GROUP_PREFIX, PrincipalKind
from comity.storage.changes import PAGE
from comity.storage.values import to_optional_utc

ROTATION_GRACE: Final = timedelta(days=1)
MAX_PERMISSIONS: Final = 1000
MAX_LISTED_MEMBERS: Final = 1000
"""How many members of one group are listed. `member_count` is the whole number."""

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


type GroupNames = Annotated[tuple[ShortText, ...], Meta(max_length=MAX_GROUPS)]


class GroupChangeBody(RequestBody, frozen=True):
    """The groups to add a principal to, and those to remove it from."""

    add: GroupNames = ()
    remove: GroupNames = ()


class KeyView(TypedDict):
    """An API key, without its secret."""

    id: str
    principal: str
    label: str
    permissions: Sequence[str]
    requests_per_minute: int | None
    requests_per_hour: int | None
    created_by: str
    created_at: datetime | None
    not_before: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used: datetime | None


class IssuedKeyView(KeyView):
    """A new key. `key` is its secret, which no later answer holds."""

    key: str


class KeyPage(TypedDict):
    """One page of keys."""

    keys: list[KeyView]
    next: NotRequired[str]


class PrincipalView(TypedDict):
    """A principal."""

    id: str
    kind: PrincipalKind
    label: str
    groups: Sequence[str]
    disabled: bool
    created_by: str
    created_at: datetime | None


class DeletedPrincipalView(PrincipalView):
    """A principal that was deleted."""

    deleted: bool


class GroupView(TypedDict):
    """A group, and some of its members. `member_count` is the whole number."""

    name: str
    subject: str
    member_count: int
    members: Sequence[str]


class GroupListView(TypedDict):
    """The groups of all stored principals."""

    groups: list[GroupView]


class PrincipalPage(TypedDict):
    """One page of principals."""

    principals: list[PrincipalView]
    next: NotRequired[str]


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
            ApiRoute("POST", f"{party}/groups", write, self._change_groups, GroupChangeBody),
            ApiRoute("POST", f"{party}/delete", write, self._delete_principal, EmptyBody),
            ApiRoute("GET", "/api/groups", read, self._list_groups, EmptyQuery),
        )

    async def _list_keys(self, request: ApiRequest[KeyPageQuery]) -> KeyPage:
        wanted = request.input
        listed = await self._keyring.keys(wanted.principal or "", wanted.cursor)
        page: KeyPage = {"keys": [key_view(key) for key in listed]}
        is_last = wanted.principal is not None or len(listed) < PAGE
        return page if is_last else {**page, "next": listed[-1].id}

    async def _create_key(self, request: ApiRequest[NewKeyBody]) -> IssuedKeyView:
        return _made(await self._keyring.create(request.actor.party, request.input.to_key()))

    async def _rotate_key(self, request: ApiRequest[KeyRotationBody]) -> IssuedKeyView:
        by, key = request.actor.party, request.path["key"]
        return _made(await self._keyring.rotate(by, key, request.input.grace))

    async def _revoke_key(self, request: ApiRequest[EmptyBody]) -> KeyView:
        return key_view(await self._keyring.revoke(request.actor.party, request.path["key"]))

    async def _list_principals(self, request: ApiRequest[CursorQuery]) -> PrincipalPage:
        listed = await self._keyring.parties(request.input.cursor)
        page: PrincipalPage = {"principals": [party_view(party) for party in listed]}
        return page if len(listed) < PAGE else {**page, "next": listed[-1].id}

    async def _add_principal(self, request: ApiRequest[NewPrincipalBody]) -> PrincipalView:
        wanted = request.input
        added = Principal(wanted.id, PrincipalKind(wanted.kind), wanted.label)
        return party_view(await self._keyring.add(request.actor.party, added))

    async def _change_groups(self, request: ApiRequest[GroupChangeBody]) -> PrincipalView:
        by, party, wanted = request.actor.party, request.path["principal"], request.input
        changed = await self._keyring.change_groups(by, party, wanted.add, wanted.remove)
        return party_view(changed)

    async def _delete_principal(self, request: ApiRequest[EmptyBody]) -> DeletedPrincipalView:
        by, party = request.actor.party, request.path["principal"]
        return {**party_view(await self._keyring.delete(by, party)), "deleted": True}

    async def _list_groups(self, request: ApiRequest[EmptyQuery]) -> GroupListView:
        groups = await self._keyring.groups()
        return {
            "groups": [
                {
                    "name": name,
                    "subject": GROUP_PREFIX + name,
                    "member_count": len(members),
                    "members": members[:MAX_LISTED_MEMBERS],
                }
                for name, members in groups.items()
            ]
        }

    def _switch(self, *, disabled: bool) -> ApiHandler[EmptyBody]:
        async def handle(request: ApiRequest[EmptyBody]) -> PrincipalView:
            by, party = request.actor.party, request.path["principal"]
            return party_view(await self._keyring.disable(by, party, disabled))

        return handle


def key_view(key: ApiKey) -> KeyView:
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


def party_view(party: Principal) -> PrincipalView:
    return {
        "id": party.id,
        "kind": party.kind,
        "label": party.label,
        "disabled": party.disabled,
        "groups": party.groups,
        "created_by": party.created_by,
        "created_at": party.created_at,
    }


def _made(made: IssuedKey) -> IssuedKeyView:
    return {**key_view(made.record), "key": made.whole}
