"""What the kernel needs to know who asks: books of keys and parties, and proofs of tokens."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from comity.wire.parties import Actor, Key, Party, PartyKind


class KeyBook(Protocol):
    """Every key in force, in memory."""

    def get(self, key: str, /) -> Key | None: ...


class PartyBook(Protocol):
    """Every party that the records know, in memory."""

    def get(self, party: str, /) -> Party | None: ...


class Proof(NamedTuple):
    """What a token proves, until when, and for which of our addresses: it and all below it."""

    actor: Actor
    expires: datetime
    paths: tuple[str, ...] = ("",)


class Tokens(Protocol):
    """Who can tell a true token from another."""

    async def prove(self, token: str) -> Proof:
        """Raises MalformedMessage with the fault where it proves nothing, or too little.

        May wait, within a bound, for the keys of whoever issued it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Issuer:
    """An authorization server whose tokens count here, as its operator wrote it down."""

    issuer: str
    audience: str
    jwks_url: str = ""
    required_scopes: tuple[str, ...] = ()
    party_claim: str = "sub"
    party_prefix: str = ""
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    kind: PartyKind = PartyKind.PERSON
