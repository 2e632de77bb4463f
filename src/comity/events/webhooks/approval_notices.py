"""Notices of approval requests, posted to the webhook of the operator.

A notice is signed, its delivery takes a bounded time, and no redirect is followed. The operator
chose the address, which may be inside its network. Comity therefore does not check whether it is.
Delivery uses `HttpWebhookSender`, as for all other posts.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from urllib.parse import SplitResult, urlsplit

from comity.approvals.presentation import SIGNATURE_HEADER, sign_notice
from comity.errors import UPSTREAM_DOWN, Misconfigured, Unavailable
from comity.events.webhooks.model import DeliveryProblem, WebhookTarget
from comity.events.webhooks.sender import HttpWebhookSender, WebhookTimeouts
from comity.http.client.dial import Resolver
from comity.http.client.proxies import NO_PROXIES, ProxySettings

log = logging.getLogger(__name__)

SECONDS: Final = 10.0
MIN_SECRET: Final = 16
_NEAR: Final = frozenset({"localhost", "127.0.0.1", "::1"})

type Clock = Callable[[], datetime]


class ApprovalWebhook:
    """The webhook of the operator: one URL, and the secret that signs the notices."""

    def __init__(
        self,
        url: str,
        secret: bytes,
        seconds: float = SECONDS,
        clock: Clock = lambda: datetime.now(UTC),
        proxies: ProxySettings = NO_PROXIES,
    ) -> None:
        self._place = _place(_parts(url))
        if len(secret) < MIN_SECRET:
            raise Misconfigured(
                f"the secret of the webhook has fewer than {MIN_SECRET} bytes; make one with "
                "`openssl rand -hex 32`"
            )
        self._secret = secret
        self._clock = clock
        deadlines = WebhookTimeouts(seconds, seconds)
        self._sender = HttpWebhookSender(
            Resolver(time.monotonic).resolve, deadlines, proxies=proxies
        )
        if self._place.scheme == "http" and self._place.host not in _NEAR:
            log.warning(
                "Posts to %s are not encrypted, and contain links that answer approval requests",
                self,
            )

    def __str__(self) -> str:
        """The origin only, because the path may contain a secret."""
        return self._place.origin

    def __repr__(self) -> str:
        return f"Webhook({self})"

    async def post(self, body: bytes) -> None:
        """Post a notice once. Raises Unavailable if the receiver does not accept it."""
        signed = {SIGNATURE_HEADER: sign_notice(self._secret, self._clock(), body)}
        answered = await self._sender.post(self._place, signed, body)
        if isinstance(answered, DeliveryProblem):
            raise Unavailable(f"{self}: {answered}")
        if not 200 <= answered.status < 300:
            raise Unavailable(f"{self} answered with status {answered.status}", UPSTREAM_DOWN)


def _place(parts: SplitResult) -> WebhookTarget:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, parts.hostname or "", port, path, is_named=True)


def _parts(url: str) -> SplitResult:
    with suppress(ValueError):
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url
        is_named = parts.hostname is not None and parts.port != 0 and "@" not in parts.netloc
        if plain and parts.scheme in ("http", "https") and is_named:
            return parts
    raise Misconfigured(
        "webhook in [approvals] is no address to post to; write it as https://hooks.example.org/comity"
    )
