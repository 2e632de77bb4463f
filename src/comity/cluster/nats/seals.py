"""Seals each message between nodes, and opens the sealed messages of other nodes.

Rule 1: a message is encrypted and authenticated (AES-256-GCM) together with its subject, its reply
        subject, its sender, its number and its time. The keys derive from a secret that all nodes
        share. Each run of a node has a key of its own, so no nonce is used twice.
Rule 2: a node numbers its messages, and NATS keeps the order of a connection. A receiver accepts
        only numbers above the last one of that sender. It drops each repeated message, and the
        rest of a connection that the sender gave up.
Rule 3: a receiver cannot know the last number of a sender that it hears for the first time. It
        accepts a message only if the clocks agree within CLOCK_TOLERANCE, and never one from
        before its own start.
Rule 4: a message that cannot be opened changes nothing. It is counted, and logged once until none
        has come for QUIET_SECONDS.
"""

import hashlib
import hmac
import logging
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = logging.getLogger(__name__)

CLOCK_TOLERANCE: Final = timedelta(seconds=30)
QUIET_SECONDS: Final = 60.0
FORGED: Final = "forged"
REPLAYED: Final = "replayed"
CLOCK: Final = "clock"
EARLIER: Final = "earlier"
REASONS: Final = (FORGED, REPLAYED, CLOCK, EARLIER)
_VERSION: Final = b"\x02"
_HEAD: Final = struct.Struct(">c16sQq")
_TAG_SIZE: Final = 16
SEAL_SIZE: Final = _HEAD.size + _TAG_SIZE
"""How many bytes a seal adds to a message."""
_SENDER_SIZE: Final = 16
_NONCE: Final = struct.Struct(">4xQ")
_NANOSECONDS: Final = 1_000_000_000
_TOLERANCE: Final = int(CLOCK_TOLERANCE.total_seconds()) * _NANOSECONDS
_QUIET: Final = int(QUIET_SECONDS) * _NANOSECONDS
_TOLD: Final = {
    FORGED: "Comity drops messages on %s that no node of this cluster sealed. Give each node the"
    " same pepper, and allow no other publisher on this NATS",
    REPLAYED: "Comity drops messages on %s that came before, or after later ones of their sender."
    " Unless NATS was just interrupted, there is an unknown publisher",
    CLOCK: "Comity drops messages of another node on %s: their time is more than"
    f" {CLOCK_TOLERANCE.total_seconds():.0f} s from that of this machine. Synchronise the clocks",
}


def derive_key(secret: bytes, purpose: bytes) -> bytes:
    """Return the key for one purpose."""
    return hmac.digest(secret, purpose, hashlib.sha256)


@dataclass(slots=True)
class _SenderEpoch:
    """One run of another node, as far as its messages arrived."""

    cipher: AESGCM
    number: int = 0
    sent: int = 0
    # The subscriptions that took the last number: NATS delivers a message to each that matches.
    taken_by: tuple[int, ...] = ()


class MessageSeals:
    """Seals and opens the messages of one node, for one run of its process."""

    def __init__(self, secret: bytes, clock: Callable[[], int] = time.time_ns) -> None:
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._key = derive_key(secret, b"messages")
        self._clock = clock
        self._began = clock()
        self._name = secrets.token_bytes(_SENDER_SIZE)
        self._cipher = self._cipher_of(self._name)
        self._number = 0
        self._senders: dict[bytes, _SenderEpoch] = {}
        self._refused_at: dict[str, int] = {}

    def seal(self, subject: bytes, reply: bytes, data: bytes) -> bytes:
        self._number += 1
        head = _HEAD.pack(_VERSION, self._name, self._number, self._clock())
        bound = b"%b %b %b" % (subject, reply, head)
        return head + self._cipher.encrypt(_NONCE.pack(self._number), data, bound)

    def open(self, sid: int, subject: bytes, reply: bytes, sealed: bytes) -> bytes | None:
        """Return the message for one subscription, or None if it is refused."""
        head, rest = sealed[: _HEAD.size], sealed[_HEAD.size :]
        if len(rest) < _TAG_SIZE or head[:1] != _VERSION:
            return self._refuse(FORGED, subject)
        _, name, number, sent = _HEAD.unpack(head)
        if name == self._name:
            return self._refuse(REPLAYED, subject)
        sender = self._senders.get(name) or _SenderEpoch(self._cipher_of(name))
        try:
            bound = b"%b %b %b" % (subject, reply, head)
            data = sender.cipher.decrypt(_NONCE.pack(number), rest, bound)
        except InvalidTag:
            return self._refuse(FORGED, subject)
        refusal = self._take(sid, name, sender, number, sent)
        return data if refusal is None else self._refuse(refusal, subject)

    def _take(
        self, sid: int, name: bytes, sender: _SenderEpoch, number: int, sent: int
    ) -> str | None:
        """Note that this subscription took the number, or return the reason for a refusal."""
        now = self._clock()
        if not -_TOLERANCE <= now - sent <= _TOLERANCE:
            return CLOCK
        if number > sender.number:
            if not sender.number:
                if sent < self._began:
                    return EARLIER
                self._remember(name, sender, now)
            sender.number, sender.sent, sender.taken_by = number, sent, (sid,)
            return None
        if number < sender.number or sid in sender.taken_by:
            return REPLAYED
        sender.taken_by += (sid,)
        return None

    def _remember(self, name: bytes, sender: _SenderEpoch, now: int) -> None:
        """Store a sender. Remove those whose messages would all be refused by their time."""
        gone = [each for each, known in self._senders.items() if now - known.sent > 2 * _TOLERANCE]
        for each in gone:
            del self._senders[each]
        self._senders[name] = sender

    def _refuse(self, reason: str, subject: bytes) -> None:
        self.refused[reason] += 1
        now, before = self._clock(), self._refused_at.get(reason)
        self._refused_at[reason] = now
        if reason in _TOLD and (before is None or now - before > _QUIET):
            log.warning(_TOLD[reason], subject.decode("ascii", "replace"))

    def _cipher_of(self, name: bytes) -> AESGCM:
        return AESGCM(derive_key(self._key, name))
