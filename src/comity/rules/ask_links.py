"""Links by which one person answers one ask, and signatures of what is posted to elsewhere.

Rule 1: a link holds for one ask, one party and a time; it says nothing of what it would answer.
Rule 2: it is a key for that alone: sealed with a secret of its own, which follows from the pepper,
        so that every node knows the links that another made.
Rule 3: whether its party may still answer is for whoever takes it to find out.
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from comity.rules.seals import seal, unseal

SIGNATURE: Final = "X-Comity-Signature"
PATH: Final = "/asks/"
_PURPOSE: Final = "answer an ask"


@dataclass(frozen=True, slots=True)
class Link:
    """Who may answer what, until when; and by which credential it was shown to be who it is.

    `credential` is empty where an operator, or the gateway itself, made the link for its party.
    """

    ask: str
    party: str
    expires_at: datetime
    credential: str = ""


class Links:
    """Makes links, and knows its own."""

    __slots__ = ("_key",)

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.digest(pepper, b"links to asks", hashlib.sha256)

    def __repr__(self) -> str:
        return "Links()"

    def seal(self, link: Link) -> str:
        until = str(int(link.expires_at.timestamp()))
        sealed = seal(self._key, _PURPOSE, link.ask, link.party, until, link.credential)
        # What ends in a sign is cut short by many a program that finds an address in a text.
        return sealed.rstrip("=")

    def unseal(self, token: str, ask: str, now: datetime) -> Link | None:
        """The link, where it is ours, about this ask, and not past its time."""
        words = unseal(self._key, token + "=" * (-len(token) % 4))
        if words is None or len(words) != 5 or words[0] != _PURPOSE:
            return None
        _, named, party, until, credential = words
        link = Link(named, party, datetime.fromtimestamp(int(until), UTC), credential)
        return link if link.ask == ask and link.expires_at > now else None


def signature(secret: bytes, at: datetime, body: bytes) -> str:
    """What a receiver checks: the same from its own copy of the secret, and a time that is near."""
    moment = int(at.timestamp())
    signed = hmac.new(secret, b"%d." % moment + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={signed}"
