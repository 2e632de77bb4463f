"""Posts to the address that an operator chose: signed, in bounded time, and nothing is followed.

The address is the operator's own and may be inside its network: it is not looked at whether it is.
It goes the one way that all posts go.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from urllib.parse import SplitResult, urlsplit

from comity.adapters.names import Resolver
from comity.adapters.posting import Deadlines, Sender
from comity.adapters.requesting import NO_PROXIES
from comity.rules.ask_links import SIGNATURE, signature
from comity.rules.proxies import Proxies
from comity.wire.errors import UPSTREAM_DOWN, Misconfigured, Unavailable
from comity.wire.webhooks import Place, Problem

log = logging.getLogger(__name__)

SECONDS: Final = 10.0
LEAST_SECRET: Final = 16
_NEAR: Final = frozenset({"localhost", "127.0.0.1", "::1"})

type Clock = Callable[[], datetime]


class Webhook:
    """One address, and the secret by which its holder knows that a post is ours."""

    def __init__(
        self,
        url: str,
        secret: bytes,
        seconds: float = SECONDS,
        clock: Clock = lambda: datetime.now(UTC),
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        self._place = _place(_parts(url))
        if len(secret) < LEAST_SECRET:
            raise Misconfigured(
                f"the secret of the webhook has fewer than {LEAST_SECRET} bytes; make one with "
                "`openssl rand -hex 32`"
            )
        self._secret = secret
        self._clock = clock
        deadlines = Deadlines(seconds, seconds)
        self._sender = Sender(Resolver(time.monotonic).resolve, deadlines, proxies=proxies)
        if self._place.scheme == "http" and self._place.host not in _NEAR:
            log.warning("posts to %s are not encrypted, and hold links that answer asks", self)

    def __str__(self) -> str:
        """Without what may be a secret."""
        return self._place.origin

    def __repr__(self) -> str:
        return f"Webhook({self})"

    async def post(self, body: bytes) -> None:
        """Once; raises Unavailable where it was not taken."""
        signed = {SIGNATURE: signature(self._secret, self._clock(), body)}
        answered = await self._sender.post(self._place, signed, body)
        if isinstance(answered, Problem):
            raise Unavailable(f"{self}: {answered}")
        if not 200 <= answered.status < 300:
            raise Unavailable(f"{self} answered with status {answered.status}", UPSTREAM_DOWN)


def _place(parts: SplitResult) -> Place:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(parts.scheme, parts.hostname or "", port, path, is_named=True)


def _parts(url: str) -> SplitResult:
    with suppress(ValueError):
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url
        is_named = parts.hostname is not None and parts.port != 0 and "@" not in parts.netloc
        if plain and parts.scheme in ("http", "https") and is_named:
            return parts
    raise Misconfigured(
        "webhook in [asks] is no address to post to; write it as https://hooks.example.org/comity"
    )
