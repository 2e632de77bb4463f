"""Sealed values: what opens them, what does not, and how often a key service is asked."""

import asyncio
from dataclasses import dataclass, field

import pytest

from comity.errors import Unavailable
from comity.secrets.envelope import DATA_KEY_SECONDS, MAX_CACHED_KEYS, EnvelopeSealer
from comity.secrets.model import (
    KEY_ID_BYTES,
    NONCE_BYTES,
    SealedHeader,
    context_of,
    parse_header,
)
from comity.secrets.providers.local import LocalKeyService

PLAIN = b"token of one principal"
CONTEXT = context_of("account", "person:ana", "github")
OLD = LocalKeyService("file:/old", b"o" * 32)
NEW = LocalKeyService("file:/new", b"n" * 32)


@dataclass
class CountedKey:
    """A key service that counts its requests, and may be slow or down."""

    inner: LocalKeyService = field(default_factory=lambda: LocalKeyService("remote", b"r" * 32))
    requests: int = 0
    is_down: bool = False
    gate: asyncio.Event | None = None

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def id(self) -> str:
        return self.inner.id

    async def _arrive(self) -> None:
        self.requests += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.is_down:
            raise Unavailable("remote does not answer")

    async def wrap(self, data_key: bytes) -> bytes:
        await self._arrive()
        return await self.inner.wrap(data_key)

    async def unwrap(self, wrapped: bytes) -> bytes | None:
        await self._arrive()
        return await self.inner.unwrap(wrapped)


async def test_a_value_opens_with_its_key_and_context_alone() -> None:
    sealed = await EnvelopeSealer([OLD]).seal(PLAIN, CONTEXT)
    assert PLAIN not in sealed
    assert await EnvelopeSealer([OLD]).unseal(sealed, CONTEXT) == PLAIN
    # After a rotation, the old key is no longer the first.
    assert await EnvelopeSealer([NEW, OLD]).unseal(sealed, CONTEXT) == PLAIN
    assert await EnvelopeSealer([NEW]).unseal(sealed, CONTEXT) is None
    for other in ("", CONTEXT + ",", context_of("account", "person:bob", "github")):
        assert await EnvelopeSealer([OLD]).unseal(sealed, other) is None
    again = await EnvelopeSealer([OLD]).seal(PLAIN, CONTEXT)
    assert sealed != again


async def test_a_changed_or_cut_value_opens_nowhere() -> None:
    sealer = EnvelopeSealer([NEW, OLD])
    sealed = await sealer.seal(PLAIN, CONTEXT)
    header = parse_header(sealed)
    assert header is not None
    regions = {
        "version": 0,
        "key id": 1,
        "length": 1 + KEY_ID_BYTES + 1,
        "wrapped key": header.size - 1,
        "nonce": header.size,
        "text": header.size + NONCE_BYTES,
        "tag": len(sealed) - 1,
    }
    for region, place in regions.items():
        for bit in (1, 128):
            changed = bytearray(sealed)
            changed[place] ^= bit
            assert await sealer.unseal(bytes(changed), CONTEXT) is None, region
    for size in range(len(sealed)):
        assert await sealer.unseal(sealed[:size], CONTEXT) is None
    for wrong in (sealed + b"x", b"\xff" * 500, b"\x01" * 500):
        assert await sealer.unseal(wrong, CONTEXT) is None
    # The id of the newest key before the data key of the old one.
    of_old = await EnvelopeSealer([OLD]).seal(PLAIN, CONTEXT)
    wrapped = parse_header(of_old)
    assert wrapped is not None
    swapped = SealedHeader(NEW.id, wrapped.wrapped).encode() + of_old[wrapped.size :]
    assert await sealer.unseal(swapped, CONTEXT) is None


def test_different_parts_never_have_the_same_context() -> None:
    parts = [(), ("",), ("", ""), ("a",), ("a", ""), ("", "a"), ("a", "b"), ("ab",), ("a,1:b",)]
    parts += [("1:a",), ("1:a,", "b"), ("a", "1:b,")]
    assert len({context_of(*each) for each in parts}) == len(parts)


async def test_many_values_need_few_requests_to_the_key_service() -> None:
    key, now = CountedKey(), [0.0]
    sealer = EnvelopeSealer([key], lambda: now[0])
    sealed = [await sealer.seal(PLAIN, CONTEXT) for _ in range(500)]
    assert key.requests == 1
    assert [await sealer.unseal(each, CONTEXT) for each in sealed] == [PLAIN] * 500
    assert key.requests == 1
    now[0] = DATA_KEY_SECONDS
    await sealer.seal(PLAIN, CONTEXT)
    assert await sealer.unseal(sealed[0], CONTEXT) == PLAIN
    assert key.requests == 3
    # Callers at the same time share a request, also on a node that has just started.
    key.gate = asyncio.Event()
    fresh = EnvelopeSealer([key])
    waiting = [asyncio.ensure_future(fresh.unseal(each, CONTEXT)) for each in sealed]
    await asyncio.sleep(0)
    waiting[0].cancel()
    key.gate.set()
    assert await asyncio.gather(*waiting[1:]) == [PLAIN] * 499
    assert key.requests == 4


async def test_the_memory_for_data_keys_is_bounded() -> None:
    key, now = CountedKey(), [0.0]
    sealer = EnvelopeSealer([key], lambda: now[0])
    for _ in range(MAX_CACHED_KEYS + 10):
        await sealer.seal(PLAIN, CONTEXT)
        now[0] += DATA_KEY_SECONDS
    assert len(sealer._cached) == MAX_CACHED_KEYS  # pyright: ignore[reportPrivateUsage]


async def test_a_key_service_that_is_down_fails_all_waiting_callers_at_once() -> None:
    key = CountedKey(is_down=True, gate=asyncio.Event())
    sealer = EnvelopeSealer([key])
    waiting = [asyncio.ensure_future(sealer.seal(PLAIN, CONTEXT)) for _ in range(50)]
    await asyncio.sleep(0)
    assert key.gate is not None
    key.gate.set()
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in failed} == {Unavailable}
    assert key.requests == 1
    key.is_down = False
    sealed = await sealer.seal(PLAIN, CONTEXT)
    assert await sealer.unseal(sealed, CONTEXT) == PLAIN


@pytest.mark.parametrize("shown", [repr, str])
async def test_no_text_of_a_sealer_shows_a_secret(shown: object) -> None:
    assert callable(shown)
    sealer = EnvelopeSealer([LocalKeyService("file:/k", b"material-of-the-key" * 2)])
    await sealer.seal(PLAIN, CONTEXT)
    current = sealer._current  # pyright: ignore[reportPrivateUsage]
    for value in (sealer, sealer.services, current):
        text = str(shown(value))
        assert "material" not in text
        assert "cipher" not in text
