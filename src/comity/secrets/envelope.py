"""Envelope encryption: AES-256-GCM with data keys that a key service wraps."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from comity.errors import SECRETS_AWAY, Misconfigured, Unavailable
from comity.secrets.model import (
    MAX_WRAPPED_BYTES,
    NONCE_BYTES,
    KeyService,
    SealedHeader,
    parse_header,
)

DATA_KEY_BYTES: Final = 32
MAX_SEALS: Final = 1_000_000
"""How many values one data key seals. Random nonces are safe up to 2**32 of them."""

DATA_KEY_SECONDS: Final = 3600.0
"""How long a data key is in memory. A key that was disabled at its service works no longer."""

MAX_CACHED_KEYS: Final = 1024


@dataclass(slots=True, repr=False)
class _DataKey:
    """A data key in memory, and when it has to be dropped."""

    header: SealedHeader
    cipher: Any
    ends_at: float
    seals_left: int = MAX_SEALS


class EnvelopeSealer:
    """Seals with the first key service and unseals with all of them.

    A data key serves many values for an hour, so that a call needs no request to the service.
    """

    def __init__(
        self, services: Sequence[KeyService], clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not services:
            raise Misconfigured("secrets.keys: name at least one key")
        self.services = tuple(services)
        self._by_id = {each.id: each for each in reversed(self.services)}
        self._clock = clock
        self._current: _DataKey | None = None
        self._cached: OrderedDict[SealedHeader, _DataKey] = OrderedDict()
        # Requests to a service, by the data key that they are about; None is about a new one.
        self._requests: dict[SealedHeader | None, asyncio.Future[_DataKey | None]] = {}

    def __repr__(self) -> str:
        return "EnvelopeSealer()"

    async def seal(self, plain: bytes, context: str) -> bytes:
        key = await self._sealing_key()
        head, nonce = key.header.encode(), secrets.token_bytes(NONCE_BYTES)
        return head + nonce + key.cipher.encrypt(nonce, plain, head + context.encode())

    async def unseal(self, sealed: bytes, context: str) -> bytes | None:
        header = parse_header(sealed)
        key = None if header is None else await self._find_key(header)
        if header is None or key is None:
            return None
        head, rest = sealed[: header.size], sealed[header.size :]
        try:
            plain: bytes = key.cipher.decrypt(
                rest[:NONCE_BYTES], rest[NONCE_BYTES:], head + context.encode()
            )
        except _crypto()[1]:
            return None
        return plain

    def is_newest(self, sealed: bytes) -> bool:
        """Whether the first key service sealed a value."""
        header = parse_header(sealed)
        return header is not None and header.key_id == self.services[0].id

    async def _sealing_key(self) -> _DataKey:
        key = self._current
        while key is None or key.ends_at <= self._clock() or not key.seals_left:
            key = await self._request_once(None, self._new_key)
        key.seals_left -= 1
        return key

    async def _new_key(self) -> _DataKey:
        service, data_key = self.services[0], secrets.token_bytes(DATA_KEY_BYTES)
        wrapped = await service.wrap(data_key)
        if not 0 < len(wrapped) <= MAX_WRAPPED_BYTES:
            raise Unavailable(f"the key {service.name} returned an unusable data key", SECRETS_AWAY)
        self._current = self._keep(SealedHeader(service.id, wrapped), data_key)
        return self._current

    async def _find_key(self, header: SealedHeader) -> _DataKey | None:
        service, found = self._by_id.get(header.key_id), self._cached.get(header)
        if service is None:
            return None
        if found is not None and found.ends_at > self._clock():
            self._cached.move_to_end(header)
            return found

        async def unwrap() -> _DataKey | None:
            data_key = await service.unwrap(header.wrapped)
            if data_key is None or len(data_key) != DATA_KEY_BYTES:
                return None
            return self._keep(header, data_key)

        return await self._request_once(header, unwrap)

    async def _request_once(
        self, header: SealedHeader | None, request: Callable[[], Awaitable[_DataKey | None]]
    ) -> _DataKey | None:
        """Return the result of a request. Callers at the same time share one, and its error."""
        running = self._requests.get(header)
        if running is None:
            running = self._requests[header] = asyncio.ensure_future(request())

            def forget(done: asyncio.Future[_DataKey | None]) -> None:
                del self._requests[header]
                # A caller that was cancelled does not read the error.
                _ = done.cancelled() or done.exception()

            running.add_done_callback(forget)
        # One cancelled caller does not end the request of the others.
        return await asyncio.shield(running)

    def _keep(self, header: SealedHeader, data_key: bytes) -> _DataKey:
        cipher = _crypto()[0](data_key)
        key = _DataKey(header, cipher, self._clock() + DATA_KEY_SECONDS)
        self._cached[header] = key
        self._cached.move_to_end(header)
        while len(self._cached) > MAX_CACHED_KEYS:
            self._cached.popitem(last=False)
        return key


async def probe_key(service: KeyService) -> None:
    """Wrap and unwrap a data key. Raises Unavailable if the service cannot do that."""
    data_key = secrets.token_bytes(DATA_KEY_BYTES)
    if await service.unwrap(await service.wrap(data_key)) != data_key:
        raise Unavailable(f"the key {service.name} does not return its data keys", SECRETS_AWAY)


@cache
def _crypto() -> tuple[Any, type[Exception]]:
    """Return the cipher, and the error of a value that it refuses."""
    # Imported here because it loads slowly, and most commands load this module without using it.
    from cryptography.exceptions import InvalidTag

    # Imported here for the same reason.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM, InvalidTag
