"""The SCIM 2.0 endpoint at /scim/v2/. (RFC 7644)

It is no part of the operator API: identity providers dictate its addresses, methods and errors.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from comity.errors import (
    INVALID_PARAMS,
    NOTHING_HERE,
    UNAUTHENTICATED,
    WRONG_CONTENT_TYPE,
    MalformedMessage,
    Unavailable,
)
from comity.http import asgi
from comity.http.api import Authorize, query_of, refuse_other_sites
from comity.http.asgi import ACTOR, Receive, Scope, Send
from comity.identity.scim import messages
from comity.identity.scim.messages import GROUPS, SCIM_PATH, USERS, Document
from comity.identity.scim.model import SCIM_WRITE, ScimGroup, ScimUser
from comity.identity.scim.service import ResourcePage, ScimService
from comity.mcp import jsonrpc
from comity.mcp.actors import ANONYMOUS, Actor

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_VALUES: Final = 200_000
MAX_DEPTH: Final = 16

_SCIM_TYPE: Final = (b"content-type", b"application/scim+json")
_NO_STORE: Final = (b"cache-control", b"no-store")
_BODY_TYPES: Final = (b"application/scim+json", b"application/json")
_METHODS_BY_DEPTH: Final = {1: ("GET", "POST"), 2: ("GET", "PUT", "PATCH", "DELETE")}
_DISCOVERY: Final = ("ServiceProviderConfig", "ResourceTypes", "Schemas")


@dataclass(frozen=True, slots=True)
class ScimRequest:
    """One request: the resource, query, body and sender, and the address of the gateway."""

    id: str
    query: Mapping[str, str]
    body: Document
    by: str
    origin: str


type Answer = tuple[int, Document | None]
type Operation = Callable[[ScimRequest], Awaitable[Answer]]


class ScimEndpoint:
    """Serves the addresses below /scim/v2/."""

    def __init__(self, service: ScimService, authorize: Authorize, public_url: str = "") -> None:
        self._service = service
        self._authorize = authorize
        self._public_url = public_url
        self._operations: Mapping[tuple[str, str, int], Operation] = {
            ("GET", USERS, 1): self._list_users,
            ("POST", USERS, 1): self._create_user,
            ("GET", USERS, 2): self._get_user,
            ("PUT", USERS, 2): self._replace_user,
            ("PATCH", USERS, 2): self._patch_user,
            ("DELETE", USERS, 2): self._delete_user,
            ("GET", GROUPS, 1): self._list_groups,
            ("POST", GROUPS, 1): self._create_group,
            ("GET", GROUPS, 2): self._get_group,
            ("PUT", GROUPS, 2): self._replace_group,
            ("PATCH", GROUPS, 2): self._patch_group,
            ("DELETE", GROUPS, 2): self._delete_group,
        }

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        actor: Actor = scope.get(ACTOR, ANONYMOUS)
        if not actor.party:
            raise MalformedMessage("this is for identity providers with a key", UNAUTHENTICATED)
        self._authorize(actor, SCIM_WRITE, "*")
        method, origin = scope["method"], self._origin(scope, headers)
        parts = scope["path"].removeprefix(SCIM_PATH).strip("/").split("/")
        query = query_of(scope.get("query_string", b""))
        if parts[0] in _DISCOVERY and len(parts) <= 2:
            await self._discover(parts, method, origin, send)
            return
        operation = self._operations.get((method, parts[0], len(parts)))
        if operation is None:
            await _refuse_address(parts, send)
            return
        body: Document = {}
        if method != "GET":
            refuse_other_sites(headers)
        if method in ("POST", "PUT", "PATCH"):
            body = await _read_document(headers, receive)
        request = ScimRequest(parts[1] if len(parts) > 1 else "", query, body, actor.party, origin)
        status, document = await operation(request)
        await _send(send, status, document)

    # Users.

    async def _list_users(self, request: ScimRequest) -> Answer:
        page = _page_of(request.query)
        found, total = await self._service.list_users(page)
        listed = [await self._show_user(request, user) for user in found]
        return 200, messages.list_document(listed, total, page.start)

    async def _get_user(self, request: ScimRequest) -> Answer:
        return 200, await self._show_user(request, await self._service.get_user(request.id))

    async def _create_user(self, request: ScimRequest) -> Answer:
        user = await self._service.create_user(request.by, request.body)
        return 201, await self._show_user(request, user)

    async def _replace_user(self, request: ScimRequest) -> Answer:
        user = await self._service.replace_user(request.by, request.id, request.body)
        return 200, await self._show_user(request, user)

    async def _patch_user(self, request: ScimRequest) -> Answer:
        user = await self._service.patch_user(request.by, request.id, request.body)
        return 200, await self._show_user(request, user)

    async def _delete_user(self, request: ScimRequest) -> Answer:
        await self._service.delete_user(request.by, request.id)
        return 204, None

    async def _show_user(self, request: ScimRequest, user: ScimUser) -> Document:
        is_asked = messages.is_selected("groups", *_selection(request))
        groups = await self._service.groups_of(user) if is_asked else ()
        return _selected(messages.user_document(user, groups, request.origin), request)

    # Groups.

    async def _list_groups(self, request: ScimRequest) -> Answer:
        page = _page_of(request.query)
        found, total = await self._service.list_groups(page)
        listed = [await self._show_group(request, group) for group in found]
        return 200, messages.list_document(listed, total, page.start)

    async def _get_group(self, request: ScimRequest) -> Answer:
        return 200, await self._show_group(request, await self._service.get_group(request.id))

    async def _create_group(self, request: ScimRequest) -> Answer:
        change = messages.read_group(request.body)
        group = await self._service.create_group(request.by, change)
        return 201, await self._show_group(request, group)

    async def _replace_group(self, request: ScimRequest) -> Answer:
        change = messages.read_group(request.body)
        group = await self._service.change_group(request.by, request.id, change)
        return 200, await self._show_group(request, group)

    async def _patch_group(self, request: ScimRequest) -> Answer:
        change = messages.patch_group(request.body)
        await self._service.change_group(request.by, request.id, change)
        # A large group is not sent back for each member that joins. (RFC 7644 §3.5.2)
        return 204, None

    async def _delete_group(self, request: ScimRequest) -> Answer:
        await self._service.delete_group(request.by, request.id)
        return 204, None

    async def _show_group(self, request: ScimRequest, group: ScimGroup) -> Document:
        # A large organization has groups with very many members.
        is_asked = messages.is_selected("members", *_selection(request))
        members = await self._service.members_of(group) if is_asked else ()
        return _selected(messages.group_document(group, members, request.origin), request)

    # What the gateway supports.

    async def _discover(self, parts: list[str], method: str, origin: str, send: Send) -> None:
        if method != "GET":
            await asgi.send_empty(send, 405, ((b"allow", b"GET"),))
            return
        if parts[0] == "ServiceProviderConfig":
            await _send(send, 200, messages.service_provider_config(origin))
            return
        is_type = parts[0] == "ResourceTypes"
        found = messages.resource_types(origin) if is_type else messages.schemas(origin)
        if len(parts) == 1:
            await _send(send, 200, messages.list_document(found, len(found), 1))
            return
        one = next((each for each in found if each["id"] == parts[1]), None)
        if one is None:
            raise _no_address()
        await _send(send, 200, one)

    def _origin(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        if self._public_url:
            return self._public_url
        return f"{scope.get('scheme', 'http')}://{headers[b'host'].decode('latin-1').strip()}"


async def send_refusal(send: Send, error: MalformedMessage | Unavailable) -> None:
    """Send a refusal in the form of SCIM."""
    status, _ = asgi.encode_refusal(error)
    await _send(send, status, messages.error_document(status, error.fault, str(error)))


async def _send(send: Send, status: int, document: Document | None) -> None:
    # An answer may have very many members, and this encoder holds up others the least.
    body = b"" if document is None else msgspec.json.encode(document)
    headers = [_SCIM_TYPE, _NO_STORE, (b"content-length", b"%d" % len(body))]
    if status == 201 and document is not None and "meta" in document:
        headers.append((b"location", str(document["meta"]["location"]).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse_address(parts: list[str], send: Send) -> None:
    allowed = _METHODS_BY_DEPTH.get(len(parts))
    if parts[0] not in (USERS, GROUPS) or allowed is None:
        raise _no_address()
    await asgi.send_empty(send, 405, ((b"allow", ", ".join(allowed).encode()),))


async def _read_document(headers: Mapping[bytes, bytes], receive: Receive) -> Document:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind not in _BODY_TYPES:
        raise MalformedMessage("send application/scim+json", WRONG_CONTENT_TYPE)
    body = await asgi.read_body(receive, headers, MAX_BODY_BYTES)
    await asgi.yield_if_long(body)
    if reason := jsonrpc.excess_reason(body, MAX_DEPTH, MAX_VALUES):
        raise MalformedMessage(reason, INVALID_PARAMS)
    # This refuses repeated names, which two readers could understand differently.
    jsonrpc.decode_members(body)
    found = jsonrpc.decode_value(body)
    return cast("Document", found)


def _selected(document: Document, request: ScimRequest) -> Document:
    wanted, excluded = _selection(request)
    if not wanted and not excluded:
        return document
    return messages.select_members(document, wanted, excluded)


def _selection(request: ScimRequest) -> tuple[str, str]:
    """Return the attributes that a request wants, and those that it excludes."""
    return request.query.get("attributes", ""), request.query.get("excludedAttributes", "")


def _page_of(query: Mapping[str, str]) -> ResourcePage:
    """Return the page that a query asks for. (RFC 7644 §3.4.2.4)"""
    start = max(1, _number(query, "startIndex", 1))
    count = min(max(0, _number(query, "count", messages.DEFAULT_PAGE)), messages.MAX_PAGE)
    written = query.get("filter")
    return ResourcePage(start, count, None if written is None else messages.read_filter(written))


def _number(query: Mapping[str, str], name: str, otherwise: int) -> int:
    written = query.get(name)
    if written is None:
        return otherwise
    digits = written.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise MalformedMessage(f"{name} must be a number", INVALID_PARAMS)
    return int(written)


def _no_address() -> MalformedMessage:
    return MalformedMessage("there is no such resource", NOTHING_HERE)
