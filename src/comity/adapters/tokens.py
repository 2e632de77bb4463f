"""Who proves access tokens; the packages for it are an extra."""

import importlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, cast

from comity.ports.identity import Issuer, Tokens
from comity.rules.proxies import Proxies
from comity.wire.errors import Misconfigured


class _Room(Protocol):
    def open_tokens(
        self, issuers: Sequence[Issuer], skew: timedelta, proxies: Proxies
    ) -> Tokens: ...


def open_tokens(issuers: Sequence[Issuer], skew: timedelta, proxies: Proxies) -> Tokens:
    """Raises Misconfigured where the extra, which is loaded by name, is not installed."""
    try:
        room = importlib.import_module("comity.adapters.oauth")
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("jwt", "cryptography"):
            raise
        raise Misconfigured(
            "to take access tokens, install what that needs: pip install 'comity[oauth]'"
        ) from None
    return cast("_Room", room).open_tokens(issuers, skew, proxies)
