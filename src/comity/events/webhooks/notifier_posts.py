"""HTTP requests of the notifiers, which tell people about approval requests.

An operator chose the URL of a webhook, and it may be inside the network. Comity therefore does not
check whether it is. A browser chose the URL of a push service, so the rules for the webhooks of
subscribers apply to it. No redirect is followed. `HttpWebhookSender` delivers all posts.
"""

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from comity.approvals.notifiers.model import PostReply
from comity.errors import UPSTREAM_DOWN, MalformedMessage, Misconfigured, Unavailable
from comity.events.webhooks.model import (
    AllowedHosts,
    DeliveryProblem,
    WebhookSender,
    WebhookTarget,
    parse_target,
)


class NotifierPosts:
    """Posts for notifiers: to URLs of the operator, and to push services."""

    def __init__(self, sender: WebhookSender, allowed_hosts: AllowedHosts) -> None:
        self._sender = sender
        self._allowed_hosts = allowed_hosts

    def check_public(self, url: str) -> None:
        parse_target(url, self._allowed_hosts)

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, max_bytes: int = 0
    ) -> PostReply:
        return await self._post(_operator_target(url), headers, body, max_bytes)

    async def post_public(self, url: str, headers: Mapping[str, str], body: bytes) -> PostReply:
        try:
            target = parse_target(url, self._allowed_hosts)
        except MalformedMessage as problem:
            raise Unavailable(f"the push service is not allowed: {problem}") from None
        return await self._post(target, headers, body, 0)

    async def _post(
        self, target: WebhookTarget, headers: Mapping[str, str], body: bytes, max_bytes: int
    ) -> PostReply:
        answered = await self._sender.post(target, headers, body, max_bytes)
        if isinstance(answered, DeliveryProblem):
            # The origin only, because the path may hold a secret.
            raise Unavailable(f"{target.origin}: {answered}", UPSTREAM_DOWN)
        return PostReply(answered.status, answered.body)


def _operator_target(url: str) -> WebhookTarget:
    parts = url_parts(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, parts.hostname or "", port, path, is_named=True)


def url_parts(url: str) -> SplitResult:
    """Return the parts of a URL of the operator. Raises Misconfigured without showing it."""
    with suppress(ValueError):
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url
        is_named = parts.hostname is not None and parts.port != 0 and "@" not in parts.netloc
        if plain and parts.scheme in ("http", "https") and is_named:
            return parts
    raise Misconfigured(
        "the URL of a notifier is no address to post to; write it as https://hooks.example.org/x"
    )
