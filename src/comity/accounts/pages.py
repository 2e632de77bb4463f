"""The pages on which a person connects an account: plain HTML without script."""

from datetime import timedelta
from html import escape
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from comity.accounts import messages
from comity.accounts.access import AccountAccess
from comity.accounts.issuers import (
    CALLBACK_PATH,
    CLIENT_DOCUMENT_PATH,
    client_document_url,
    redirect_uri_for,
)
from comity.accounts.model import AccountKey
from comity.accounts.service import FLOW_LIFETIME
from comity.approvals.model import OWNER, SIGN_IN_PATH, ApprovalKind
from comity.approvals.service import ApprovalService
from comity.errors import NOTHING_HERE, UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import HttpEndpoint, Receive, Scope, Send
from comity.http.pages import render_heading, render_page, render_paragraph
from comity.identity.authentication import Authenticator
from comity.identity.login import rules
from comity.identity.login.page_requests import (
    PageAnswer,
    PageRequest,
    page_endpoint,
)
from comity.identity.login.rules import LOGIN_PATH, START_PATH
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.protocol import is_id
from comity.toolkit.text import start_sentence

ACCOUNT_COOKIE: Final = "__Host-comity-account"
ACCOUNTS_PATH: Final = "/accounts/"

_TITLE: Final = "Connect an account"
_RELOADED: Final = "reloaded"


class AccountPages:
    """The endpoints below /accounts/."""

    def __init__(
        self,
        access: AccountAccess,
        approvals: ApprovalService,
        authenticator: Authenticator,
        public_url: str = "",
    ) -> None:
        self._access = access
        self._accounts = access.accounts
        self._approvals = approvals
        self._authenticator = authenticator
        self._public_url = public_url
        self._connect = page_endpoint({"GET": self._show, "POST": self._begin}, self._refusal)
        self._callback = page_endpoint({"GET": self._finish}, self._refusal)
        self._document = page_endpoint({"GET": self._describe_client}, self._refusal)

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return {ACCOUNTS_PATH: self._serve}

    async def _serve(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        path: str = scope["path"]
        if path.startswith(SIGN_IN_PATH):
            await self._connect(scope, headers, receive, send)
        elif path.startswith(CALLBACK_PATH):
            await self._callback(scope, headers, receive, send)
        elif path.startswith(CLIENT_DOCUMENT_PATH):
            await self._document(scope, headers, receive, send)
        else:
            raise asgi.not_found_error()

    # The page that explains what happens next.

    async def _show(self, request: PageRequest) -> PageAnswer:
        actor = await self._actor(request)
        if actor is None:
            query = urlencode({"next": _path_of(request)}, quote_via=quote)
            return PageAnswer(303, location=f"{LOGIN_PATH}?{query}")
        key, _ = await self._target(request, actor)
        if (issuer := self._accounts.identity_issuer(key)) is not None:
            return await self._connect_by_identity(request, key, issuer)
        known = self._accounts.tokens.find(key)
        scopes = () if known is None else known.missing_scopes
        whose = "your account" if key.owner else "the account that all callers share"
        parts = [
            render_heading(f"Connect {whose} at {key.server}"),
            render_paragraph(
                f"Comity will use it for calls of tools of {key.server}. You sign in at the "
                "server's own provider, and Comity never sees your password."
            ),
        ]
        if scopes:
            parts.append(render_paragraph(f"A call also needs: {' '.join(scopes)}."))
        parts.append(
            '<form method="post"><div class="buttons">'
            f'<button class="yes">Sign in to {escape(key.server)}</button></div></form>'
        )
        return PageAnswer(200, render_page(_TITLE, *parts))

    async def _begin(self, request: PageRequest) -> PageAnswer:
        actor = await self._require_actor(request)
        key, waiting = await self._target(request, actor)
        if (issuer := self._accounts.identity_issuer(key)) is not None:
            return await self._connect_by_identity(request, key, issuer)
        begun = await self._accounts.begin_sign_in(
            *key, actor.party, request.origin(self._public_url), waiting
        )
        cookie = rules.format_cookie(ACCOUNT_COOKIE, begun.cookie, FLOW_LIFETIME, "Lax")
        # A redirect of the form would be refused by `form-action`, which allows this site only.
        body = render_page(
            _TITLE,
            f'<meta http-equiv="refresh" content="0; url={escape(begun.url)}">',
            render_heading(f"Sign in to {key.server}"),
            f'<p><a class="button yes" href="{escape(begun.url)}">'
            f"Continue to {escape(urlsplit(begun.url).netloc)}</a></p>",
        )
        return PageAnswer(200, body, cookies=(cookie,))

    async def _connect_by_identity(
        self, request: PageRequest, key: AccountKey, issuer: str
    ) -> PageAnswer:
        """Connect an account by the sign-in to Comity, or say that it must be done again.

        A link leads there, and no redirect: an issuer that refuses every token would redirect the
        browser for ever.
        """
        if await self._accounts.tokens.token_for(key) is not None:
            return PageAnswer(200, render_page(_TITLE, *_connected_parts(key.server)))
        query = urlencode({"issuer": issuer, "next": _path_of(request)}, quote_via=quote)
        body = render_page(
            _TITLE,
            render_heading(f"Sign in to Comity again for {key.server}"),
            render_paragraph(
                f"Your sign-in at {urlsplit(issuer).netloc} gives you the account at "
                f"{key.server}. It has expired, or it was not accepted."
            ),
            f'<p><a class="button yes" href="{escape(f"{START_PATH}?{query}")}">Sign in</a></p>',
        )
        return PageAnswer(200, body)

    # The way back.

    async def _finish(self, request: PageRequest) -> PageAnswer:
        actor = await self._actor(request)
        if actor is None and _RELOADED not in request.fields:
            # The browser comes from another site, so it did not send the session's cookie. A page
            # of our own that loads this address again gets it.
            query = urlencode({**request.fields, _RELOADED: "1"}, quote_via=quote)
            again = escape(f"{quote(_path_of(request))}?{query}")
            body = render_page(
                _TITLE,
                f'<meta http-equiv="refresh" content="0; url={again}">',
                render_heading("One moment"),
                f'<p><a class="button" href="{again}">Continue</a></p>',
            )
            return PageAnswer(200, body)
        actor = actor or await self._require_actor(request)
        account, _ = await self._accounts.finish_sign_in(
            actor.party,
            rules.cookie_of(request.headers, ACCOUNT_COOKIE),
            request.fields,
            request.origin(self._public_url),
            _path_of(request).removeprefix(CALLBACK_PATH),
        )
        body = render_page(_TITLE, *_connected_parts(account.server))
        return PageAnswer(200, body, cookies=(_removed_cookie(),))

    async def _describe_client(self, request: PageRequest) -> PageAnswer:
        """Answer with the client ID metadata document for the issuer of a server.

        Every valid name has one, so that a stranger does not learn which servers there are.
        """
        origin, server = request.origin(self._public_url), _path_of(request)
        server = server.removeprefix(CLIENT_DOCUMENT_PATH)
        if not is_id(server):
            raise MalformedMessage("there is no such page", NOTHING_HERE)
        document = messages.client_document(
            origin, redirect_uri_for(origin, server), client_document_url(origin, server)
        )
        return PageAnswer(200, bytes(jsonrpc.to_raw(document)))

    # Who, and which account.

    async def _actor(self, request: PageRequest) -> Actor | None:
        """Return the person who is signed in with this browser, or None."""
        try:
            return await self._authenticator.identify_browser(request.credentials(ACCOUNTS_PATH))
        except MalformedMessage as error:
            if error.fault is UNAUTHENTICATED:
                return None
            raise

    async def _require_actor(self, request: PageRequest) -> Actor:
        actor = await self._actor(request)
        if actor is None:
            raise MalformedMessage(
                "sign in to Comity first, then open the link again", UNAUTHENTICATED
            )
        return actor

    async def _target(self, request: PageRequest, actor: Actor) -> tuple[AccountKey, str]:
        """Return the account that a page is about, and the request that waits for it, if any."""
        named = request.scope["path"].removeprefix(SIGN_IN_PATH)
        waiting = await self._approvals.store.get(named) if len(named) <= 64 else None
        if waiting is not None and waiting.kind is ApprovalKind.SIGN_IN:
            if not self._approvals.may_see(waiting, actor):
                raise MalformedMessage("there is no such page", NOTHING_HERE)
            key = AccountKey(waiting.server, str(waiting.about.get(OWNER, "")))
            self._access.require_connect(actor, key)
            return key, waiting.id
        key = self._access.own_key(actor, named)
        self._access.require_connect(actor, key)
        return key, ""

    def _refusal(self, error: MalformedMessage | Unavailable) -> PageAnswer:
        status, _ = asgi.encode_refusal(error)
        text = f"{start_sentence(str(error).replace(chr(10), ' '))}."
        body = render_page(_TITLE, render_heading("That did not work"), render_paragraph(text))
        return PageAnswer(status, body, cookies=(_removed_cookie(),))


def _connected_parts(server: str) -> tuple[str, str]:
    return (
        render_paragraph(f"Your account at {server} is connected.", "done"),
        render_paragraph("Calls that waited for it go on now. You can close this page."),
    )


def _path_of(request: PageRequest) -> str:
    return str(request.scope["path"])


def _removed_cookie() -> bytes:
    return rules.format_cookie(ACCOUNT_COOKIE, "", timedelta(), "Lax")
