"""How the SDKs of models reach their servers: within bounds, nowhere else, and with few words.

Rule 1: no redirect is followed: a key goes where the operator said, and nowhere else.
Rule 2: an answer is read up to a bound, and not unpacked: few bytes must not become many.
Rule 3: an error names the model and a number; what its server wrote may hold the prompt or the key.
"""

import functools
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from comity.ports.models import ModelSpec
from comity.wire.errors import (
    MODEL_REFUSED,
    RATE_LIMITED,
    UPSTREAM_DOWN,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    Unavailable,
)

MOST_BYTES: Final = 32 * 1024 * 1024
CONNECT_SECONDS: Final = 10.0
LONGEST_WAIT: Final = timedelta(hours=1)
# They write down what is asked, and of whom.
_TALKATIVE: Final = ("openai", "anthropic", "httpx2", "httpcore2")
_BUSY: Final = (408, 409, 425, 429, 529)


class _TooMuch(httpx2.HTTPError):
    """Its own name, so that it is told from a connection that broke."""


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for part in self._inner:
            left -= len(part)
            if left < 0:
                raise _TooMuch("an answer that is too long")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        await response.aclose()
        raise _TooMuch("an answer that is packed")
    response.stream = _Bounded(response.stream)


@functools.cache
def _tls() -> ssl.SSLContext:
    """One for all: each takes a tenth of a second and a megabyte."""
    return ssl.create_default_context()


def http_client(spec: ModelSpec) -> httpx2.AsyncClient:
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    return httpx2.AsyncClient(
        verify=_tls(),
        proxy=spec.proxy or None,
        trust_env=False,
        timeout=httpx2.Timeout(spec.deadline.total_seconds(), connect=CONNECT_SECONDS),
        headers={"Accept-Encoding": "identity"},
        follow_redirects=False,
        event_hooks={"response": [_bound]},
    )


def refused(spec: ModelSpec, status: int, headers: Mapping[str, str]) -> Unavailable:
    """What a status other than success means."""
    because = f"model {spec.id!r} answered {status}"
    again = again_in(headers.get("retry-after", ""))
    if status in _BUSY:
        return Unavailable(because, RATE_LIMITED, again)
    fault = UPSTREAM_FAILED if status >= 500 else MODEL_REFUSED
    return Unavailable(because, fault, again)


def broken(spec: ModelSpec, error: BaseException) -> Unavailable:
    """What it means that no answer came, or none that could be read."""
    if isinstance(error, httpx2.TimeoutException | TimeoutError):
        return Unavailable(f"model {spec.id!r} did not answer in time", UPSTREAM_SLOW)
    if isinstance(error, _TooMuch):
        return Unavailable(f"model {spec.id!r} gave {error}", MODEL_REFUSED)
    if isinstance(error, httpx2.ConnectError):
        return Unavailable(f"model {spec.id!r} cannot be reached", UPSTREAM_DOWN)
    if isinstance(error, httpx2.HTTPError):
        return Unavailable(f"model {spec.id!r} broke off", UPSTREAM_FAILED)
    return Unavailable(f"model {spec.id!r} said what is no reply", UPSTREAM_FAILED)


def again_in(said: str) -> timedelta | None:
    """How long a server wants to be left alone: seconds, or a date."""
    try:
        found = timedelta(seconds=float(said))
    except (ValueError, OverflowError):
        try:
            found = parsedate_to_datetime(said) - datetime.now(UTC)
        except (ValueError, TypeError):
            return None
    return min(max(found, timedelta()), LONGEST_WAIT)
