"""Requests to pages without script, their answers, and the endpoint that serves them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from comity.errors import ORIGIN_REFUSED, MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import HttpEndpoint, Receive, Scope, Send
from comity.http.pages import parse_form, read_form, send_page
from comity.identity.authentication import RequestCredentials
from comity.identity.login import rules

READ_METHODS: Final = ("GET", "HEAD")
NO_SCRIPT: Final = ((b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"))


class PageRequest(NamedTuple):
    """One request to a page."""

    scope: Scope
    headers: dict[bytes, bytes]
    fields: Mapping[str, str]

    def credentials(self, path: str) -> RequestCredentials:
        """Return what identifies the sender at the pages below this path."""
        client = self.scope.get("client")
        is_near = asgi.is_loopback_name(self.headers.get(b"host", b""))
        address = client[0] if client else ""
        return RequestCredentials(self.headers, address, path, is_near)

    def origin(self, public_url: str) -> str:
        """Return the origin of this gateway in the browser. Raises Unavailable if it is unknown.

        A provider compares the address with the registered one, so no header may choose it.
        """
        if public_url:
            return public_url
        host = self.headers.get(b"host", b"").strip()
        if not asgi.is_loopback_name(host):
            raise Unavailable("set public_url in [identity], so that people can sign in here")
        return f"{self.scope.get('scheme', 'http')}://{host.decode('latin-1')}"


class PageAnswer(NamedTuple):
    """The answer of a page: HTML, JSON, or a redirect if `location` is there."""

    status: int
    body: bytes = b""
    location: str = ""
    cookies: tuple[bytes, ...] = ()


type PageHandler = Callable[[PageRequest], Awaitable[PageAnswer]]
type RefusalPage = Callable[[MalformedMessage | Unavailable], PageAnswer]


def page_endpoint(handlers: Mapping[str, PageHandler], refusal: RefusalPage) -> HttpEndpoint:
    """Return the endpoint of a page with one handler for each method."""
    allowed = ", ".join(handlers).encode()

    async def serve(
        scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        handler = handlers.get(scope["method"])
        if handler is None:
            # Also for HEAD: a program that only looks at a link must not use it up.
            await asgi.send_empty(send, 405, ((b"allow", allowed),))
            return
        try:
            answer = await handler(await _read(scope, headers, receive))
        except (MalformedMessage, Unavailable) as error:
            answer = refusal(error)
        await _send(send, answer)

    return serve


async def _read(scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> PageRequest:
    if scope["method"] in READ_METHODS:
        return PageRequest(scope, headers, parse_form(scope.get("query_string", b"")))
    # Browsers send the Origin of every form. A forged sign-in or sign-out has another one.
    if not rules.is_own_origin(headers):
        raise MalformedMessage("pages of other sites may post nothing here", ORIGIN_REFUSED)
    return PageRequest(scope, headers, await read_form(headers, receive))


async def _send(send: Send, answer: PageAnswer) -> None:
    extra = [(b"set-cookie", cookie) for cookie in answer.cookies]
    if answer.location:
        extra += [(b"location", answer.location.encode("ascii")), *NO_SCRIPT]
        await asgi.send_empty(send, answer.status, extra)
    elif answer.body.startswith(b"{"):
        await asgi.send_json(send, answer.status, answer.body, [*extra, *NO_SCRIPT])
    else:
        await send_page(send, answer.status, answer.body, extra)
