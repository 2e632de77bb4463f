"""API keys: their form, their checksum, and whether one that is shown is one that was given out.

`cmty_<environment>_<11 key id>_<43 secret><6 CRC-32>`, letters and digits: a scanner finds it by
its beginning, a slip of the hand is found by the checksum, and only the HMAC of the whole is kept.

Rule 1: a key is looked up by its id, never searched for; only then are MACs compared, in constant
        time, and a MAC is compared for an id that nobody has too. (D-89)
Rule 2: that a key has expired or was revoked is told to nobody who does not hold it.
Rule 3: what a key may do is the most that it may do; its party's grants decide the rest. (D-85)
"""

import hashlib
import hmac
import re
import zlib
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from comity.wire.errors import CREDENTIAL_EXPIRED, UNAUTHENTICATED, MalformedMessage
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE, CALL, LIST, READ
from comity.wire.parties import Key

PREFIX: Final = "cmty"
ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH: Final = 11
SECRET_LENGTH: Final = 43

_CHECK_LENGTH: Final = 6
_FORM: Final = re.compile(rb"cmty_[a-z0-9]{1,16}_([0-9A-Za-z]{11})_[0-9A-Za-z]{43}[0-9A-Za-z]{6}")
_ENVIRONMENT: Final = re.compile(r"[a-z0-9]{1,16}")
_NAMED: Final = re.compile(r"(ToolInvoke|ToolRead)\((\S{1,256})\)")
_WRITTEN: Final = re.compile(r"([A-Za-z0-9_.*/-]{1,128}) (\S{1,256})")
_PLAIN: Final = {
    "ToolsListAll": (LIST, "*"),
    "AdminRead": (ADMIN_READ, "*"),
    "AdminWrite": (ADMIN_WRITE, "*"),
}
_NAMING: Final = {"ToolInvoke": CALL, "ToolRead": READ}
_DUMMY: Final = bytes(32)


class Shown(NamedTuple):
    """A key as somebody shows it: well formed, and no more than that."""

    id: str
    whole: bytes

    def __repr__(self) -> str:
        return f"Shown({self.id!r})"


def write(environment: str, key_id: str, secret: str) -> str:
    """The whole key; whoever calls has drawn id and secret by lot."""
    if not _ENVIRONMENT.fullmatch(environment):
        raise ValueError("the environment of a key is 1 to 16 of a-z and 0-9")
    body = f"{PREFIX}_{environment}_{key_id}_{secret}"
    return body + _checksum(body.encode()).decode()


def looks_like_key(credential: bytes) -> bool:
    """Whether it is meant as one of our keys, rightly spelt or not."""
    return credential.startswith(b"cmty_")


def parse(credential: bytes) -> Shown | None:
    """The key that is shown, or None where it cannot be one: nothing is looked up for that."""
    form = _FORM.fullmatch(credential)
    if form is None or _checksum(credential[:-_CHECK_LENGTH]) != credential[-_CHECK_LENGTH:]:
        return None
    return Shown(form[1].decode(), credential)


def mac(pepper: bytes, whole: bytes) -> bytes:
    """What is kept of a key: useless without the pepper, which stands elsewhere."""
    return hmac.digest(pepper, whole, hashlib.sha256)


def verify(pepper: bytes, shown: Shown, known: Key | None, now: datetime) -> Key:
    """The key that was given out, if this is it and it counts now; raises MalformedMessage."""
    expected = _DUMMY if known is None else known.mac
    is_right = hmac.compare_digest(mac(pepper, shown.whole), expected)
    if known is None or not is_right:
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
    if known.revoked_at is not None and known.revoked_at <= now:
        raise MalformedMessage("this key was revoked; ask for another", UNAUTHENTICATED)
    if known.expires_at is not None and known.expires_at <= now:
        raise MalformedMessage("this key has expired; ask for another", CREDENTIAL_EXPIRED)
    if known.not_before is not None and known.not_before > now:
        raise MalformedMessage("this key does not count yet", UNAUTHENTICATED)
    return known


def counts(key: Key, now: datetime) -> bool:
    """Whether a key that was given out can be used now."""
    return (
        (key.revoked_at is None or key.revoked_at > now)
        and (key.expires_at is None or key.expires_at > now)
        and (key.not_before is None or key.not_before <= now)
    )


UNKNOWN: Final = "no such credentials are known here"


def bounds_of(permissions: Iterable[str]) -> tuple[tuple[str, str], ...] | None:
    """The verbs and targets to which a key is bound; None where it is bound to nothing.

    In the registry's words (`ToolInvoke(search)`, `ToolsListAll`), or as a grant says it, a verb
    and a target (`tools/call files/*`). What cannot be read permits nothing.
    """
    written = tuple(permissions)
    if not written:
        return None
    return tuple(bound for each in written if (bound := bound_in(each)) is not None)


def bound_in(permission: str) -> tuple[str, str] | None:
    """One permission, or None where nobody could say what it permits."""
    if permission in _PLAIN:
        return _PLAIN[permission]
    named = _NAMED.fullmatch(permission)
    if named is not None:
        return _NAMING[named[1]], _target(named[2])
    written = _WRITTEN.fullmatch(permission)
    return None if written is None else (written[1], written[2])


def _target(tool: str) -> str:
    """A tool as a target: `server/tool`, `server__tool`, or the tool's own name at any server."""
    if "/" in tool or tool == "*":
        return tool
    server, separator, name = tool.partition("__")
    return f"{server}/{name}" if separator and server and name else f"*/{tool}"


def _checksum(body: bytes) -> bytes:
    number, digits = zlib.crc32(body), bytearray(_CHECK_LENGTH)
    for place in range(_CHECK_LENGTH - 1, -1, -1):
        number, digit = divmod(number, 62)
        digits[place] = _DIGITS[digit]
    return bytes(digits)


_DIGITS: Final = ALPHABET.encode()
