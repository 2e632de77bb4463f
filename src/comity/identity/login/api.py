"""API of browser sessions: who is signed in, all sessions, and one-time links."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, TypedDict
from urllib.parse import urlencode

from msgspec import Meta

from comity.errors import OPERATORS_ONLY, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import CursorQuery, EmptyBody, EmptyQuery, RequestBody
from comity.identity.login.model import BrowserSession
from comity.identity.login.rules import CREDENTIAL_PREFIX, LINK_PATH, MAX_NEXT_LENGTH
from comity.identity.login.service import LoginService
from comity.identity.principals import Principal
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, LOCAL_OPERATOR, Actor
from comity.storage.changes import PAGE

_ANSWER: Final = "approval/answer"

type MayUse = Callable[[Actor, str], bool]
"""Whether an actor has a grant of this verb, on anything."""


class LoginLinkBody(RequestBody, frozen=True):
    """The path that the browser opens after the sign-in."""

    next: Annotated[str, Meta(max_length=MAX_NEXT_LENGTH)] = ""


class CurrentSession(TypedDict):
    """The sender of this request, and their rights."""

    principal: str
    kind: str
    label: str
    groups: list[str]
    how: str
    session: str | None
    expires_at: datetime | None
    may_read: bool
    may_write: bool
    may_answer: bool
    version: str
    node: str
    mode: str


class SessionView(TypedDict):
    """A browser session, without its secrets."""

    id: str
    principal: str
    method: str
    issuer: str
    key: str
    created_at: datetime
    last_seen: datetime
    expires_at: datetime


class SessionPage(TypedDict, total=False):
    """Some of the sessions, and the cursor of the next page if there are more."""

    sessions: list[SessionView]
    next: str


class LoginLink(TypedDict):
    """The address of a one-time link, and its expiry."""

    path: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class GatewayDescription:
    """The gateway, as the console shows it."""

    version: str
    node: str
    mode: str


class SessionsApi:
    """Routes of browser sessions."""

    def __init__(
        self,
        login: LoginService,
        find_principal: Callable[[str], Principal | None],
        may_use: MayUse,
        about: GatewayDescription,
    ) -> None:
        self._login = login
        self._sessions = login.sessions
        self._find_principal = find_principal
        self._may_use = may_use
        self._about = about

    @property
    def routes(self) -> ApiRoutes:
        read, write, anybody = (
            Permission.ADMIN_READ,
            Permission.ADMIN_WRITE,
            Permission.ANY_PRINCIPAL,
        )
        revoke = "/api/sessions/{session}/revoke"
        return (
            ApiRoute("GET", "/api/session", anybody, self._describe, EmptyQuery),
            ApiRoute("GET", "/api/sessions", read, self._list, CursorQuery),
            ApiRoute("POST", revoke, write, self._revoke, EmptyBody),
            ApiRoute("POST", "/api/login-links", write, self._make_link, LoginLinkBody),
        )

    async def _describe(self, request: ApiRequest[EmptyQuery]) -> CurrentSession:
        """Return who sends this request, and what they may do."""
        actor = request.actor
        known = self._find_principal(actor.party)
        kind, _, id = actor.credential.partition(":")
        return {
            "principal": actor.party,
            "kind": actor.kind,
            "label": known.label if known is not None else "",
            "groups": list(actor.groups),
            "how": kind,
            "session": id if actor.credential.startswith(CREDENTIAL_PREFIX) else None,
            "expires_at": actor.expires_at,
            "may_read": self._may_use(actor, ADMIN_READ),
            "may_write": self._may_use(actor, ADMIN_WRITE),
            "may_answer": self._may_use(actor, _ANSWER),
            "version": self._about.version,
            "node": self._about.node,
            "mode": self._about.mode,
        }

    async def _list(self, request: ApiRequest[CursorQuery]) -> SessionPage:
        """Return the sessions that have not ended."""
        found = await self._sessions.page(request.input.cursor)
        page: SessionPage = {"sessions": [session_view(each) for each in found]}
        if len(found) >= PAGE:
            page["next"] = found[-1].id
        return page

    async def _revoke(self, request: ApiRequest[EmptyBody]) -> SessionView:
        """End a session on all nodes."""
        ended = await self._sessions.end(request.actor.party, request.path["session"])
        return session_view(ended)

    async def _make_link(self, request: ApiRequest[LoginLinkBody]) -> LoginLink:
        """Return a one-time link that signs the local operator in."""
        # A session must not make more of itself, and a key has its own form.
        if request.actor.credential != LOCAL_OPERATOR.credential:
            raise MalformedMessage(
                "only the operator token of a gateway in local mode makes sign-in links",
                OPERATORS_ONLY,
            )
        token, expires = self._login.make_link(request.input.next)
        return {"path": link_path(token), "expires_at": expires}


def link_path(token: str) -> str:
    return f"{LINK_PATH}?{urlencode({'token': token})}"


def session_view(session: BrowserSession) -> SessionView:
    return {
        "id": session.id,
        "principal": session.party,
        "method": session.method,
        "issuer": session.issuer,
        "key": session.key,
        "created_at": session.created_at,
        "last_seen": session.last_seen,
        "expires_at": session.expires_at,
    }
