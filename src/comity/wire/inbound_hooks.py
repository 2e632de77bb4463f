"""HTTP webhooks that come in: how each kind is signed, and where it says which event it is.

Rule 1: a signature is compared in the same time whether or not it is right.
Rule 2: where a time is signed, one that is too old or too new does not count.
Rule 3: what is not signed with the body proves nothing: it may name an event, and no more.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from comity.wire.webhooks import WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP

TOLERANCE: Final = timedelta(minutes=5)
LEAST_SECRET: Final = 16
SECRET: Final = "whsec_"  # noqa: S105  # how those of Standard Webhooks begin
OF_BODY: Final = "body"
OF_HEADER: Final = "header:"
ALGORITHMS: Final = ("sha256", "sha384", "sha512")

GITHUB_SIGNATURE: Final = b"x-hub-signature-256"
GITHUB_DELIVERY: Final = "x-github-delivery"
GITHUB_EVENT: Final = b"x-github-event"
GITLAB_TOKEN: Final = b"x-gitlab-token"
GITLAB_KEY: Final = "idempotency-key"
GITLAB_UUID: Final = "x-gitlab-event-uuid"
GITLAB_EVENT: Final = b"x-gitlab-event"

type Heading = Mapping[bytes, bytes]
"""Headers by their names in small letters."""


class HookKind(StrEnum):
    GITHUB = "github"
    GITLAB = "gitlab"
    STANDARD = "standard"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, repr=False)
class Signing:
    """How a hook is signed, and with what; of several secrets each counts, while one is replaced.

    `header` and `algorithm` are for the plain kind: the HMAC of the body, in hexadecimal digits or
    Base64, perhaps with `sha256=` before it.
    """

    kind: HookKind
    secrets: tuple[bytes, ...]
    header: str = ""
    algorithm: str = "sha256"


def is_signed(signing: Signing, headers: Heading, body: bytes, now: datetime) -> bool:
    """Whether whoever sent this knows a secret."""
    match signing.kind:
        case HookKind.GITHUB:
            shown = headers.get(GITHUB_SIGNATURE, b"")
            made = [_hex("sha256", secret, body) for secret in signing.secrets]
            return _is_any([shown], [b"sha256=" + each for each in made])
        case HookKind.GITLAB:
            # Of what is of unequal length compare_digest tells that; of a digest it cannot.
            shown = _digest(headers.get(GITLAB_TOKEN, b""))
            return _is_any([shown], [_digest(secret) for secret in signing.secrets])
        case HookKind.STANDARD:
            return _is_standard(signing.secrets, headers, body, now)
        case HookKind.PLAIN:
            return _is_plain(signing, headers, body)


def _is_standard(secrets: Iterable[bytes], headers: Heading, body: bytes, now: datetime) -> bool:
    id = headers.get(WEBHOOK_ID.encode(), b"")
    at = headers.get(WEBHOOK_TIMESTAMP.encode(), b"")
    signed = b"%b.%b.%b" % (id, at, body)
    made = [
        b"v1," + base64.b64encode(hmac.digest(_key(secret), signed, "sha256")) for secret in secrets
    ]
    shown = headers.get(WEBHOOK_SIGNATURE.encode(), b"").split(b" ")[:16]
    return _is_any(shown, made) and bool(id) and _is_recent(at, now)


def _is_recent(at: bytes, now: datetime) -> bool:
    if not at.isdigit() or len(at) > 12:
        return False
    return abs(now.timestamp() - int(at)) <= TOLERANCE.total_seconds()


def _is_plain(signing: Signing, headers: Heading, body: bytes) -> bool:
    shown = headers.get(signing.header.encode(), b"").strip()
    shown = shown.removeprefix(signing.algorithm.encode() + b"=")
    made = [hmac.digest(secret, body, signing.algorithm) for secret in signing.secrets]
    in_digits = [each.hex().encode() for each in made]
    return _is_any([shown.lower()], in_digits) | _is_any([shown], map(base64.b64encode, made))


def _is_any(shown: Iterable[bytes], made: Iterable[bytes]) -> bool:
    """Each is compared with each, whatever came of the others."""
    wanted, found = list(made), False
    for each in shown:
        for one in wanted:
            found |= hmac.compare_digest(each, one)
    return found


def _hex(algorithm: str, secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, body, algorithm).hex().encode()


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _key(secret: bytes) -> bytes:
    """The bytes that `whsec_...` stands for; others stand for themselves."""
    if not secret.startswith(SECRET.encode()):
        return secret
    try:
        return base64.b64decode(secret.removeprefix(SECRET.encode()), validate=True)
    except binascii.Error:
        return secret


# Which event it is, and of what type.

_USUAL: Final[Mapping[HookKind, tuple[str, ...]]] = {
    HookKind.GITHUB: (f"{OF_HEADER}{GITHUB_DELIVERY}",),
    # The first stays the same when GitLab tries again; versions before 17.4 do not send it.
    HookKind.GITLAB: (f"{OF_HEADER}{GITLAB_KEY}", f"{OF_HEADER}{GITLAB_UUID}", OF_BODY),
    HookKind.STANDARD: (f"{OF_HEADER}{WEBHOOK_ID}",),
    HookKind.PLAIN: (OF_BODY,),
}
_TYPES: Final[Mapping[HookKind, bytes]] = {
    HookKind.GITHUB: GITHUB_EVENT,
    HookKind.GITLAB: GITLAB_EVENT,
}


def usual_ids(kind: HookKind) -> tuple[str, ...]:
    """Where a kind says which event it is; the first counts that is there."""
    return _USUAL[kind]


def header_of(headers: Heading, name: str) -> str:
    return headers.get(name.lower().encode(), b"").decode("latin-1").strip()


def type_of(kind: HookKind, headers: Heading) -> str:
    """What the sender calls this type of event; nothing where its kind has no name for it."""
    said = headers.get(_TYPES.get(kind, b""), b"").decode("latin-1")
    return said[:100] if said.isprintable() else ""


def digest_of(body: bytes) -> str:
    return f"sha256-{hashlib.sha256(body).hexdigest()}"
