"""The sign-in pages: plain HTML without script, and the redirects of a sign-in."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from html import escape
from typing import Final
from urllib.parse import quote, urlencode

from comity.errors import (
    UNAUTHENTICATED,
    MalformedMessage,
    Unavailable,
)
from comity.http import asgi
from comity.http.asgi import HttpEndpoint, Receive, Scope, Send
from comity.http.pages import (
    read_form,
    render_heading,
    render_page,
    render_paragraph,
)
from comity.identity.authentication import Authenticator, RequestCredentials
from comity.identity.keys import looks_like_key
from comity.identity.login import rules
from comity.identity.login.page_requests import (
    NO_SCRIPT,
    PageAnswer,
    PageHandler,
    PageRequest,
    page_endpoint,
)
from comity.identity.login.rules import (
    BACKCHANNEL_PATH,
    CALLBACK_PATH,
    LINK_PATH,
    LOGIN_COOKIE,
    LOGIN_PATH,
    LOGOUT_PATH,
    SESSION_COOKIE,
    START_PATH,
)
from comity.identity.login.service import CompletedSignIn, LoginService
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.toolkit.text import start_sentence

log = logging.getLogger(__name__)

_GONE: Final = timedelta()
_LOCAL_HINT: Final = "To sign in as the operator of this machine, run `comity console`."


class LoginPages:
    """The endpoints of /login and /logout."""

    def __init__(
        self, login: LoginService, authenticator: Authenticator, public_url: str = ""
    ) -> None:
        self._login = login
        self._authenticator = authenticator
        self._public_url = public_url

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return {
            LOGIN_PATH: self._page({"GET": self._show, "POST": self._take_key}),
            START_PATH: self._page({"GET": self._start}),
            CALLBACK_PATH: self._page({"GET": self._finish}),
            LINK_PATH: self._page({"GET": self._open_link}),
            LOGOUT_PATH: self._page({"POST": self._sign_out}),
            BACKCHANNEL_PATH: self._end_by_provider,
        }

    def _page(self, handlers: Mapping[str, PageHandler]) -> HttpEndpoint:
        return page_endpoint(handlers, self._refusal)

    # Pages.

    async def _show(self, request: PageRequest) -> PageAnswer:
        return PageAnswer(200, self._render(request, request.fields.get("next", "")))

    def _render(self, request: PageRequest, return_to: str, problem: str = "") -> bytes:
        target = rules.own_path(return_to)
        parts = [render_heading("Sign in")]
        parts += [render_paragraph(problem, "odd")] if problem else []
        providers = self._login.providers.values()
        parts += [_provider_link(each.id, each.name, target) for each in providers]
        if self._is_local(request):
            parts.append(render_paragraph(_LOCAL_HINT))
        parts.append(_key_form(target, is_only=not providers))
        return render_page("Sign in to Comity", *parts)

    def _refusal(self, error: MalformedMessage | Unavailable) -> PageAnswer:
        status, _ = asgi.encode_refusal(error)
        text = f"{start_sentence(str(error).replace(chr(10), ' '))}."
        body = render_page(
            "Sign in to Comity",
            render_heading("That did not work"),
            render_paragraph(text),
            f'<p><a href="{LOGIN_PATH}">Sign in again</a></p>',
        )
        # A sign-in that failed is over. Its cookie is of no more use.
        return PageAnswer(status, body, cookies=(_removed(LOGIN_COOKIE, "Lax"),))

    # With a provider.

    async def _start(self, request: PageRequest) -> PageAnswer:
        issuer, target = request.fields.get("issuer", ""), request.fields.get("next", "")
        url, cookie = await self._login.start(issuer, target, self._callback_of(request))
        return PageAnswer(303, location=url, cookies=(cookie,))

    async def _finish(self, request: PageRequest) -> PageAnswer:
        cookie = rules.cookie_of(request.headers, LOGIN_COOKIE)
        redirect_uri = self._callback_of(request)
        return _completed(await self._login.finish(cookie, request.fields, redirect_uri))

    def _callback_of(self, request: PageRequest) -> str:
        return f"{request.origin(self._public_url)}{CALLBACK_PATH}"

    # With an API key, and with a one-time link.

    async def _take_key(self, request: PageRequest) -> PageAnswer:
        key, target = request.fields.get("key", "").strip(), request.fields.get("next", "")
        try:
            actor = await self._holder_of(key, request.credentials(LOGIN_PATH))
        except MalformedMessage as error:
            problem = f"{start_sentence(str(error))}."
            return PageAnswer(401, self._render(request, target, problem))
        await self._end_earlier(request)
        return _completed(await self._login.sign_in_with_key(actor, target))

    async def _holder_of(self, key: str, credentials: RequestCredentials) -> Actor:
        shown = b"Bearer " + key.encode("utf-8", "replace")
        # Access tokens are for programs. Any other text counts as a wrong key.
        if not looks_like_key(shown[7:]):
            self._authenticator.login_throttle.count_failure(credentials.peer)
            raise MalformedMessage("this is no API key of this gateway", UNAUTHENTICATED)
        return await self._authenticator.identify(
            credentials._replace(headers={b"authorization": shown})
        )

    async def _open_link(self, request: PageRequest) -> PageAnswer:
        # Raises unless the request comes from this machine, and not through a proxy.
        self._authenticator.local(request.credentials(LOGIN_PATH))
        return _completed(await self._login.open_link(request.fields.get("token", "")))

    def _is_local(self, request: PageRequest) -> bool:
        try:
            self._authenticator.local(request.credentials(LOGIN_PATH))
        except MalformedMessage:
            return False
        return True

    # The end.

    async def _end_earlier(self, request: PageRequest) -> None:
        """End the session that this browser had, so that no two remain."""
        if cookie := rules.cookie_of(request.headers, SESSION_COOKIE):
            await self._login.sign_out(cookie, "")

    async def _sign_out(self, request: PageRequest) -> PageAnswer:
        cookie = rules.cookie_of(request.headers, SESSION_COOKIE)
        try:
            back = f"{request.origin(self._public_url)}{LOGIN_PATH}"
        except Unavailable:
            back = ""
        elsewhere = await self._login.sign_out(cookie, back) if cookie else ""
        cookies = (_removed(SESSION_COOKIE), _removed(LOGIN_COOKIE, "Lax"))
        if b"application/json" in request.headers.get(b"accept", b""):
            body = bytes(jsonrpc.to_raw({"location": elsewhere or LOGIN_PATH}))
            return PageAnswer(200, body, cookies=cookies)
        return PageAnswer(200, _signed_out_page(elsewhere), cookies=cookies)

    async def _end_by_provider(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Take the order of a provider to end sessions. (OpenID Connect Back-Channel Logout)"""
        if scope["method"] != "POST":
            await asgi.send_empty(send, 405, ((b"allow", b"POST"),))
            return
        status, body = 200, b"{}"
        try:
            token = (await read_form(headers, receive)).get("logout_token", "")
            count = await self._login.end_by_provider(token)
            log.info("A provider ended %d sessions", count)
        except MalformedMessage as error:
            log.warning("A back-channel logout was refused: %s", error)
            status, body = 400, b'{"error":"invalid_request"}'
        await asgi.send_json(send, status, body, NO_SCRIPT)


def _provider_link(issuer: str, name: str, target: str) -> str:
    query = urlencode({"issuer": issuer, "next": target}, quote_via=quote)
    place = escape(f"{START_PATH}?{query}")
    return f'<p><a class="button yes" href="{place}">Sign in with {escape(name)}</a></p>'


def _key_form(target: str, *, is_only: bool) -> str:
    label = "Your API key" if is_only else "Or sign in with an API key"
    button = '<button class="yes">' if is_only else "<button>"
    return (
        f'<form method="post" action="{LOGIN_PATH}" autocomplete="off">'
        f'<input type="hidden" name="next" value="{escape(target)}">'
        f'<label for="key">{label}</label>'
        '<input id="key" name="key" type="password" autocomplete="off" required '
        'maxlength="200" spellcheck="false" autocapitalize="off">'
        f'<div class="buttons">{button}Sign in</button></div></form>'
    )


def _signed_out_page(elsewhere: str) -> bytes:
    """Return the page after a sign-out.

    It leads to the provider by itself. A redirect of the form would be refused by `form-action`,
    which allows this site only.
    """
    if not elsewhere:
        parts = (render_paragraph("You are signed out of Comity."), _again_link())
        return render_page("Signed out", render_heading("Signed out"), *parts)
    place = escape(elsewhere)
    return render_page(
        "Signed out",
        f'<meta http-equiv="refresh" content="0; url={place}">',
        render_heading("Signed out"),
        render_paragraph("You are signed out of Comity."),
        f'<p><a class="button" href="{place}">Sign out of your provider too</a></p>',
    )


def _again_link() -> str:
    return f'<p><a class="button" href="{LOGIN_PATH}">Sign in again</a></p>'


def _completed(done: CompletedSignIn) -> PageAnswer:
    return PageAnswer(303, location=done.next, cookies=(done.cookie, _removed(LOGIN_COOKIE, "Lax")))


def _removed(name: str, same_site: str = "Strict") -> bytes:
    return rules.format_cookie(name, "", _GONE, same_site)
