"""Interfaces of key services, secret sources and sealed stores, and the form of a sealed value."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

SEALED_VERSION: Final = 1
KEY_ID_BYTES: Final = 8
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
MAX_WRAPPED_BYTES: Final = 8 * 1024
SEALED_PAGE: Final = 100
"""How many sealed values a store returns at once."""

_LENGTH_BYTES: Final = 2
_FIXED_BYTES: Final = 1 + KEY_ID_BYTES + _LENGTH_BYTES


class Sealer(Protocol):
    """Encrypts values for the store.

    The context names the place of a value. A value that is copied to another place, such as the
    row of another principal, cannot be decrypted there.
    """

    async def seal(self, plain: bytes, context: str) -> bytes:
        """Encrypt a value. Raises Unavailable if the key service does not answer."""
        ...

    async def unseal(self, sealed: bytes, context: str) -> bytes | None:
        """Decrypt a value.

        Returns None if another key sealed it, if the context differs or if it was changed. Raises
        Unavailable if the key service does not answer.
        """
        ...


class KeyService(Protocol):
    """Holds a key that encrypts data keys. The key itself never leaves a remote service."""

    @property
    def name(self) -> str:
        """The service as the settings name it. It holds no secret."""
        ...

    @property
    def id(self) -> str:
        """The id of the key: 16 hexadecimal digits. Another key has another id."""
        ...

    async def wrap(self, data_key: bytes) -> bytes:
        """Encrypt a data key. Raises Unavailable within seconds."""
        ...

    async def unwrap(self, wrapped: bytes) -> bytes | None:
        """Decrypt a data key, or return None if it is not of this key. Raises Unavailable."""
        ...


class SecretSource(Protocol):
    """Holds secrets that the configuration names."""

    @property
    def name(self) -> str: ...

    async def read(self, name: str) -> str | None:
        """Return a secret, or None if this source has none of the name.

        Raises Unavailable if the source does not answer, and Misconfigured if it is unusable.
        """
        ...


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """One sealed value of a store. The id is unique in the store."""

    id: str
    sealed: bytes = field(repr=False)
    context: str


class SealedStore(Protocol):
    """A store that holds sealed values, as the rotation of keys sees it."""

    @property
    def sealed_name(self) -> str:
        """The values for people, such as `webhooks`."""
        ...

    async def list_sealed(
        self, after: str = "", limit: int = SEALED_PAGE
    ) -> Sequence[SealedRecord]:
        """Return sealed values in order of id, beginning after `after`."""
        ...

    async def replace_sealed(self, record: SealedRecord, sealed: bytes) -> bool:
        """Replace a value, if it still is the one of the record. Return whether it was."""
        ...


class SealedHeader(NamedTuple):
    """The first bytes of a sealed value: the key service, and the data key that it wrapped."""

    key_id: str
    wrapped: bytes

    def encode(self) -> bytes:
        length = len(self.wrapped).to_bytes(_LENGTH_BYTES)
        return bytes([SEALED_VERSION]) + bytes.fromhex(self.key_id) + length + self.wrapped

    @property
    def size(self) -> int:
        return _FIXED_BYTES + len(self.wrapped)


def parse_header(sealed: bytes) -> SealedHeader | None:
    """Return the header of a sealed value, or None if the value is not of this form."""
    if len(sealed) < _FIXED_BYTES or sealed[0] != SEALED_VERSION:
        return None
    length = int.from_bytes(sealed[_FIXED_BYTES - _LENGTH_BYTES : _FIXED_BYTES])
    if not 0 < length <= MAX_WRAPPED_BYTES:
        return None
    if len(sealed) < _FIXED_BYTES + length + NONCE_BYTES + TAG_BYTES:
        return None
    key_id = sealed[1 : 1 + KEY_ID_BYTES].hex()
    return SealedHeader(key_id, sealed[_FIXED_BYTES : _FIXED_BYTES + length])


def context_of(*parts: str) -> str:
    """Join the parts of a context. Different parts never have the same context."""
    return "".join(f"{len(part)}:{part}," for part in parts)
