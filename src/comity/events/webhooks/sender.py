"""Posts to webhook receivers, only at the addresses that were checked.

Rule 1: a host is resolved once for each attempt, and its addresses are checked before Comity
        connects. TLS verifies the name of the host, and the connection uses the checked address.
        (attack 9) A proxy resolves names by itself. Comity then checks only its own resolution,
        and the proxy decides which internal hosts are reachable.
Rule 2: no redirect is followed, and no connection is used twice.
Rule 3: a response is read only as far as its status or the caller needs. The time is bounded,
        however slow the receiver is.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.errors import Unavailable
from comity.events.webhooks.model import DeliveryProblem, HttpReply, WebhookTarget, address_problem
from comity.http.client.client import HttpResponse, await_response, default_tls
from comity.http.client.dial import HttpOrigin, proxy_chooser, request_head
from comity.http.client.pool import HttpConnectionPool, PoolLimits
from comity.http.client.proxies import NO_PROXIES, ProxySettings
from comity.validation.network import parse_address

MAX_ADDRESSES: Final = 3
_HEADERS: Final = {"User-Agent": "comity", "Content-Type": "application/json"}

type Resolve = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class WebhookTimeouts:
    """Timeouts for connecting, and for the whole exchange with the response body."""

    connect: float = 5.0
    whole: float = 10.0


class HttpWebhookSender:
    """Posts to any permitted receiver, with a separate connection for each request."""

    def __init__(
        self,
        resolve: Resolve,
        timeouts: WebhookTimeouts | None = None,
        trusted: ssl.SSLContext | None = None,
        proxies: ProxySettings = NO_PROXIES,
    ) -> None:
        self._choose_proxy = proxy_chooser(proxies)
        self._resolve = resolve
        self._timeouts = timeouts or WebhookTimeouts()
        self._ssl_context = trusted

    async def post(
        self, target: WebhookTarget, heading: Mapping[str, str], body: bytes, maximum: int = 0
    ) -> HttpReply | DeliveryProblem:
        origin = HttpOrigin(target.scheme, target.host, target.port)
        try:
            async with asyncio.timeout(self._timeouts.whole):
                found = await self._addresses(target)
                is_direct = self._choose_proxy is None or self._choose_proxy(origin) is None
                if (found or is_direct) and address_problem(target, found) is not None:
                    return DeliveryProblem.FORBIDDEN
                head = request_head("POST", target.path, origin, {**_HEADERS, **heading}.items())
                async with (
                    self._pool(target, found) as pool,
                    await_response(pool, origin, head, body) as response,
                ):
                    return await _reply(response, maximum)
        except TimeoutError:
            return DeliveryProblem.TIMEOUT
        except Unavailable as problem:
            return _problem(problem.__cause__)

    async def _addresses(self, target: WebhookTarget) -> Sequence[str]:
        if parse_address(target.host) is not None:
            return (target.host,)
        return (await self._resolve(target.host))[:MAX_ADDRESSES]

    def _pool(self, target: WebhookTarget, addresses: Sequence[str]) -> HttpConnectionPool:
        """Build a pool for one request, which connects only to the checked addresses."""

        async def find(_: str) -> Sequence[str]:
            return addresses

        tls = (self._ssl_context or default_tls()) if target.scheme == "https" else None
        limits = PoolLimits(1, idle=0, connect_timeout=timedelta(seconds=self._timeouts.connect))
        return HttpConnectionPool(tls, limits, self._choose_proxy, find)


async def _reply(response: HttpResponse, maximum: int) -> HttpReply:
    body = bytearray()
    if maximum:
        # The status counts, even if the receiver closes the connection before the end of the body.
        with suppress(Unavailable):
            async for chunk in response.chunks():
                body += chunk[: maximum - len(body)]
                if len(body) >= maximum:
                    break
    asked = response.headers.get("retry-after", "")
    is_number = asked.isascii() and asked.isdigit() and len(asked) < 8
    again_in = timedelta(seconds=int(asked)) if is_number else timedelta(0)
    return HttpReply(response.status, again_in, bytes(body))


def _problem(cause: BaseException | None) -> DeliveryProblem:
    match cause:
        case TimeoutError():
            return DeliveryProblem.TIMEOUT
        case ssl.SSLError():
            return DeliveryProblem.TLS
        case OSError():
            return DeliveryProblem.REFUSED
        case _:
            return DeliveryProblem.NO_HTTP
