"""The public keys of one issuer: found, fetched in the background, kept, and rotated. (RFC 7517)

Rule 1: a call waits for keys only while there are none, or for a key that nobody here has seen; and
        such a look is taken at most once in a while, whoever asks.
Rule 2: keys that could not be fetched again count for an hour, and no longer.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from comity.adapters.fetching import fetch
from comity.ports.identity import Issuer
from comity.rules.proxies import Proxies
from comity.wire.errors import POLICY_UNKNOWN, Unavailable

log = logging.getLogger(__name__)

type Fetch = Callable[[str], dict[str, Any]]

FRESH_SECONDS: Final = 300.0
STALE_SECONDS: Final = 3600.0
LOOK_EVERY_SECONDS: Final = 2.0
MOST_KEYS: Final = 64
LEAST_RSA_BITS: Final = 2048
_FAMILIES: Final[Mapping[str, str]] = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class KeySet:
    """What one issuer signs with."""

    def __init__(
        self, issuer: Issuer, now: Callable[[], float], fetching: Fetch | None = None
    ) -> None:
        self._issuer = issuer
        self._now = now
        self._fetch = fetching or fetch
        self._jwks: list[dict[str, Any]] = []
        self._keys: dict[tuple[str | None, str], PyJWK] = {}
        self._fetched = self._looked = -math.inf
        self._looking: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """The key of that name, for that algorithm; raises Unavailable where none are known."""
        age = self._now() - self._fetched
        if age > STALE_SECONDS:
            await self._look()
        elif age > FRESH_SECONDS:
            self._begin()
        found = self._held(kid, algorithm)
        if found is None and self._now() - self._looked > LOOK_EVERY_SECONDS:
            await self._look()
            found = self._held(kid, algorithm)
        if self._now() - self._fetched > STALE_SECONDS:
            raise Unavailable(
                f"the keys of {self._issuer.issuer} cannot be had at present", POLICY_UNKNOWN
            )
        return found

    def _held(self, kid: str | None, algorithm: str) -> PyJWK | None:
        held = self._keys.get((kid, algorithm))
        if held is None:
            held = self._made(kid, algorithm)
            if held is not None:
                self._keys[kid, algorithm] = held
        return held

    def _made(self, kid: str | None, algorithm: str) -> PyJWK | None:
        fitting = [jwk for jwk in self._jwks if _fits(jwk, kid, algorithm)]
        # A token that names no key is for the only one there is; nobody is guessed at.
        if len(fitting) != 1:
            return None
        try:
            made = PyJWK(fitting[0], algorithm)
        except (PyJWTError, ValueError, TypeError, KeyError):
            return None
        bits = getattr(made.key, "key_size", 0)
        return None if fitting[0]["kty"] == "RSA" and bits < LEAST_RSA_BITS else made

    async def _look(self) -> None:
        """Fetch them, or wait for whoever does already; a look that was just taken counts."""
        if self._looking is not None or self._now() - self._looked > LOOK_EVERY_SECONDS:
            await asyncio.wait([self._begin()])

    def _begin(self) -> asyncio.Task[None]:
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._refresh())
            self._looking.add_done_callback(self._looked_once)
        return self._looking

    def _looked_once(self, _: asyncio.Task[None]) -> None:
        self._looking = None

    async def _refresh(self) -> None:
        self._looked = self._now()
        try:
            found = await asyncio.to_thread(self.read)
        except Unavailable as error:
            log.warning("issuer %s: %s", self._issuer.issuer, error)
        except Exception:
            log.exception("fetching the keys of %s ended in a bug", self._issuer.issuer)
        else:
            self._jwks, self._keys, self._fetched = found, {}, self._now()

    def read(self) -> list[dict[str, Any]]:
        """Fetch them now; raises Unavailable. Blocks: call it in a thread."""
        listed: object = self._fetch(self._issuer.jwks_url or self._discovered()).get("keys")
        if not isinstance(listed, list):
            raise Unavailable("its key set holds no keys")
        keys = cast("list[object]", listed)[:MOST_KEYS]
        return [cast("dict[str, Any]", each) for each in keys if isinstance(each, dict)]

    def _discovered(self) -> str:
        """Where its keys are, by its metadata: OAuth's, or OpenID Connect's. (RFC 8414)"""
        issuer = self._issuer.issuer
        parts = urlsplit(issuer)
        path = parts.path.rstrip("/")
        origin = f"{parts.scheme}://{parts.netloc}"
        refused: Unavailable | None = None
        for place in (
            f"{origin}/.well-known/oauth-authorization-server{path}",
            f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        ):
            try:
                return _keys_url(self._fetch(place), issuer)
            except Unavailable as error:
                refused = error
        raise Unavailable(f"{refused}; name its keys with jwks_url")


def count_keys(issuer: Issuer, proxies: Proxies) -> int:
    """How many keys an issuer offers now; raises Unavailable. Blocks."""
    return len(KeySet(issuer, time.monotonic, partial(fetch, proxies=proxies)).read())


def _keys_url(metadata: dict[str, Any], issuer: str) -> str:
    """Only on the issuer's own host and in its scheme: an operator wrote down no other."""
    url: object = metadata.get("jwks_uri")
    if metadata.get("issuer") != issuer:
        raise Unavailable("its metadata is that of another issuer")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise Unavailable("its metadata names no keys")
    keys, own = urlsplit(url), urlsplit(issuer)
    if keys.netloc != own.netloc:
        raise Unavailable("its keys are on another host")
    if keys.scheme != own.scheme:
        raise Unavailable(f"its keys are not at {own.scheme}, as it is itself")
    return url


def _fits(jwk: dict[str, Any], kid: str | None, algorithm: str) -> bool:
    return (
        (kid is None or jwk.get("kid") == kid)
        and jwk.get("kty") == _FAMILIES[algorithm[:2]]
        and jwk.get("use", "sig") == "sig"
        and jwk.get("alg", algorithm) == algorithm
    )
