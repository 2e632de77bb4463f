"""Who asks: from the credentials of one request to an actor, or a refusal. (design §1, attack 7)

Rule 1: every request shows its own credentials; a session's id, an address or a field of a message
        shows nothing. (D-17, D-37)
Rule 2: whoever shows credentials is judged by them, also where none would be needed.
Rule 3: without any, a request is the local user's only in the single-user mode, and only if it came
        from this machine under a name of this machine. It has no rights of an operator, since tool
        servers can send such requests too; the operator token gives them.
Rule 4: nothing here waits for a store: keys and parties are in memory, and a proof is remembered.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from comity.kernel.guesses import Guesses
from comity.kernel.last_use import LastUse
from comity.ports.identity import KeyBook, PartyBook, Proof, Tokens
from comity.rules import keys
from comity.rules.resources import is_within
from comity.wire.errors import UNAUTHENTICATED, MalformedMessage
from comity.wire.parties import LOCAL, LOCAL_OPERATOR, Actor, Key, Party

type Clock = Callable[[], datetime]

REMEMBERED: Final = 10_000
REMEMBERED_FOR: Final = timedelta(seconds=60)
LONGEST: Final = 16 * 1024
_BEARER: Final = b"bearer "
_KEY: Final = "key"
_PASSED_ON: Final = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}
)
"""What a proxy adds: then the one who asks is not the one who connected."""

WHERE_TO_SHOW: Final = (
    "show who you are: send `Authorization: Bearer KEY` with a key that `comity keys create` gave, "
    "or an access token"
)


@dataclass(frozen=True, slots=True, repr=False)
class Register:
    """Who is known here, and by what its keys are recognised."""

    keys: KeyBook
    parties: PartyBook
    pepper: bytes


class Arrival(NamedTuple):
    """One request as far as it tells who sent it."""

    headers: Mapping[bytes, bytes]
    peer: str = ""
    path: str = ""
    is_named_locally: bool = False


class Identity:
    """Turns credentials into actors."""

    def __init__(
        self,
        register: Register,
        tokens: Tokens | None = None,
        *,
        is_local: bool = False,
        operator_token: str = "",
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.is_local = is_local
        self._operator_token = operator_token.encode()
        self.used = LastUse()
        self.guesses = Guesses()
        self._register = register
        self._tokens = tokens
        self._clock = clock
        self._holders: dict[bytes, tuple[Key, Party, Actor]] = {}
        self._proofs: dict[bytes, tuple[Proof, datetime]] = {}

    @property
    def pepper(self) -> bytes:
        """By what keys are recognised, for whoever makes new ones."""
        return self._register.pepper

    def recognise(self, shown: bytes, arrival: Arrival) -> Actor | None:
        """Who shows this, where that is known without a wait; None where it has to be proved."""
        credential = shown[7:].strip(b" ")
        if shown[:7].lower() != _BEARER:
            return None
        if not keys.looks_like_key(credential):
            return self.operator(arrival) if self._is_operator_token(shown) else None
        return self._holder(credential)

    async def identify(self, arrival: Arrival) -> Actor:
        """Who sent this; raises MalformedMessage where nobody is known by what it shows.

        Credentials are verified first, whatever else came from their address: a key is a look-up
        and one HMAC. Only those that are wrong are counted; too many raise Unavailable.
        """
        shown = arrival.headers.get(b"authorization")
        if shown is None:
            return self.local(arrival)
        if shown[:7].lower() != _BEARER:
            raise MalformedMessage(WHERE_TO_SHOW, UNAUTHENTICATED)
        if self._is_operator_token(shown):
            return self.operator(arrival)
        try:
            return await self.known_by(shown[7:].strip(b" "), arrival.path)
        except MalformedMessage as error:
            # What has expired was good once: nobody guessed it, and many expire at one time.
            if error.fault is UNAUTHENTICATED:
                self.guesses.failed(arrival.peer)
            raise

    async def known_by(self, credential: bytes, path: str = "") -> Actor:
        """Who holds this key, or this token."""
        if keys.looks_like_key(credential):
            return self._holder(credential)
        if self._tokens is None or not 0 < len(credential) <= LONGEST:
            raise MalformedMessage(keys.UNKNOWN, UNAUTHENTICATED)
        return await self._proven(self._tokens, credential, path)

    def named(self, party: str, key: str = "") -> Actor | None:
        """A party that is known and let in; as the holder of one of its keys, where one is named.

        For somebody whose credentials were looked at before, or who was named by an operator.
        """
        if party == LOCAL_OPERATOR.party and not key:
            return LOCAL_OPERATOR if self.is_local else None
        known = self._register.parties.get(party)
        if known is None or known.disabled:
            return None
        if not key:
            return Actor(party, known.kind, "link")
        held = self._register.keys.get(key)
        if held is None or held.party != party or not keys.counts(held, self._clock()):
            return None
        return _actor(held, known)

    def stands(self, actor: Actor) -> bool:
        """Whether the credentials still count by which somebody was recognised a while ago."""
        if actor.is_local:
            return self.is_local
        party = self._register.parties.get(actor.party)
        if party is not None and party.disabled:
            return False
        kind, _, id = actor.credential.partition(":")
        if kind != _KEY:
            return actor.expires_at is None or actor.expires_at > self._clock()
        held = self._register.keys.get(id)
        return (
            party is not None
            and held is not None
            and held.party == actor.party
            and keys.counts(held, self._clock())
        )

    def operator(self, arrival: Arrival) -> Actor:
        """The local user with its operator token; it comes from this machine too. Raises."""
        self.local(arrival)
        return LOCAL_OPERATOR

    def _is_operator_token(self, shown: bytes) -> bool:
        """Whether this is the token that the gateway made for its operator when it started."""
        token, credential = self._operator_token, shown[7:].strip(b" ")
        return self.is_local and bool(token) and hmac.compare_digest(credential, token)

    def renewed(self, actor: Actor) -> Actor | None:
        """The same actor as it is known here now; None where its credentials no longer count."""
        if not self.stands(actor):
            return None
        kind, _, id = actor.credential.partition(":")
        return self.named(actor.party, id) if kind == _KEY else actor

    def local(self, arrival: Arrival) -> Actor:
        """Whoever shows nothing: the local user, where that is enough. Raises as above."""
        if not self.is_local:
            raise MalformedMessage(WHERE_TO_SHOW, UNAUTHENTICATED)
        if (
            arrival.is_named_locally
            and is_loopback(arrival.peer)
            and _PASSED_ON.isdisjoint(arrival.headers)
        ):
            return LOCAL
        raise MalformedMessage(
            'this gateway serves its own machine alone; set mode = "required" in [identity] and '
            "give keys to whoever comes from elsewhere or through a proxy",
            UNAUTHENTICATED,
        )

    def _holder(self, credential: bytes) -> Actor:
        """Who holds this key; one that was recognised is known by its digest the next time."""
        digest = hashlib.sha256(credential).digest()
        now = self._clock()
        key, party, actor = self._holders.get(digest) or self._recognise(credential, digest, now)
        if (
            self._register.keys.get(key.id) is not key
            or self._register.parties.get(key.party) is not party
            or not keys.counts(key, now)
        ):
            # Something is other than it was: what that is for this key is found out anew.
            key, party, actor = self._recognise(credential, digest, now)
        self.used.note(key.id, now)
        return actor

    def _recognise(
        self, credential: bytes, digest: bytes, now: datetime
    ) -> tuple[Key, Party, Actor]:
        self._holders.pop(digest, None)
        shown = keys.parse(credential)
        if shown is None:
            raise MalformedMessage(
                "this is no whole key; copy it again from its first letter to its last",
                UNAUTHENTICATED,
            )
        key = keys.verify(self._register.pepper, shown, self._register.keys.get(shown.id), now)
        party = self._register.parties.get(key.party)
        if party is None or party.disabled:
            raise MalformedMessage(DISABLED, UNAUTHENTICATED)
        if len(self._holders) >= REMEMBERED:
            del self._holders[next(iter(self._holders))]
        held = self._holders[digest] = (key, party, _actor(key, party))
        return held

    async def _proven(self, tokens: Tokens, credential: bytes, path: str) -> Actor:
        digest = hashlib.sha256(credential).digest()
        now = self._clock()
        proof, until = self._proofs.get(digest, (None, now))
        if proof is None or until <= now:
            self._proofs.pop(digest, None)
            proof = await tokens.prove(credential.decode("latin-1"))
            if len(self._proofs) >= REMEMBERED:
                self._proofs.pop(next(iter(self._proofs)))
            self._proofs[digest] = (proof, min(proof.expires, now + REMEMBERED_FOR))
        party = self._register.parties.get(proof.actor.party)
        if party is not None and party.disabled:
            raise MalformedMessage(DISABLED, UNAUTHENTICATED)
        if path and not is_within(path, proof.paths):
            raise MalformedMessage("this token is for another address of ours", UNAUTHENTICATED)
        return proof.actor


def _actor(key: Key, party: Party) -> Actor:
    return Actor(
        key.party,
        party.kind,
        f"{_KEY}:{key.id}",
        keys.bounds_of(key.permissions),
        requests_per_minute=key.requests_per_minute,
        requests_per_hour=key.requests_per_hour,
        expires_at=key.expires_at,
    )


DISABLED: Final = "whoever these credentials were given to may not come in at present"


@lru_cache(1024)
def is_loopback(peer: str) -> bool:
    """Whether a connection came from this machine itself."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
