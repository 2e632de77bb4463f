"""The notifier `web_push`: encrypted messages to browsers. (RFC 8030, RFC 8291, RFC 8292)

A payload has one line of text and the ID of the request, and never arguments. The push service
cannot read it. The key that names this gateway follows from its pepper, so that all nodes have it.
"""

import base64
import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.approvals.notifiers.messages import notice_title, status_text
from comity.approvals.notifiers.model import (
    ApprovalNotice,
    NoticePhase,
    OutgoingPosts,
    PushSubscription,
    PushSubscriptionStore,
)
from comity.approvals.notifiers.webhook import origin_of
from comity.errors import UPSTREAM_DOWN, Unavailable

TOKEN_LIFETIME: Final = timedelta(hours=12)
MIN_TTL_SECONDS: Final = 60
RECORD_SIZE: Final = 4096
MAX_TEXT_LENGTH: Final = 500
AUTH_BYTES: Final = 16
PUBLIC_KEY_BYTES: Final = 65
_CURVE: Final = ec.SECP256R1()
_CURVE_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_GONE: Final = (404, 410)


class VapidKey:
    """The key pair by which push services recognise this gateway. (RFC 8292)"""

    __slots__ = ("_private", "public_text")

    def __init__(self, pepper: bytes) -> None:
        wide = hmac.digest(pepper, b"web push key 1", hashlib.sha512)
        self._private = ec.derive_private_key(int.from_bytes(wide) % (_CURVE_ORDER - 1) + 1, _CURVE)
        self.public_text = encode_base64(encode_public_key(self._private.public_key()))

    def __repr__(self) -> str:
        return "VapidKey()"

    def authorization(self, endpoint: str, contact: str, now: datetime) -> str:
        """Return the header that says who sends a message to this push service."""
        claims = {
            "aud": origin_of(endpoint),
            "exp": int((now + TOKEN_LIFETIME).timestamp()),
            "sub": contact,
        }
        parts = ({"typ": "JWT", "alg": "ES256"}, claims)
        signed = ".".join(encode_base64(msgspec.json.encode(each)) for each in parts)
        made = self._private.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
        r, s = utils.decode_dss_signature(made)
        signature = encode_base64(r.to_bytes(32) + s.to_bytes(32))
        return f"vapid t={signed}.{signature}, k={self.public_text}"


class WebPushChannel:
    """Sends messages to all browsers of a person."""

    is_personal = True
    hears_every_change = False

    def __init__(
        self,
        posts: OutgoingPosts,
        subscriptions: PushSubscriptionStore,
        key: VapidKey,
        page_url: Callable[[ApprovalRequest, str], str],
        *,
        contact: str,
        clock: Callable[[], datetime],
    ) -> None:
        self._posts = posts
        self._subscriptions = subscriptions
        self._key = key
        self._page_url = page_url
        self._contact = contact
        self._clock = clock

    def can_reach(self, person: str) -> bool:
        return True

    def wants_change(self, request: ApprovalRequest) -> bool:
        return not request.is_open and request.state is not ApprovalState.CONSUMED

    def close(self) -> None:
        pass

    async def send(self, notice: ApprovalNotice, reference: str = "") -> str:
        """Send a message to each browser. Raises Unavailable if none took it and one failed."""
        payload, headers = msgspec.json.encode(self._payload(notice)), _headers(notice)
        sent, problem = 0, None
        for each in await self._subscriptions.list_of_party(notice.recipient):
            try:
                sent += await self._post(each, payload, headers)
            except Unavailable as failed:
                problem = failed
        if problem is not None and not sent:
            raise problem
        return "push" if sent else ""

    async def _post(
        self, subscription: PushSubscription, payload: bytes, headers: dict[str, str]
    ) -> bool:
        """Send to one browser. Returns False if it no longer wants messages."""
        endpoint = subscription.endpoint
        signed = {
            **headers,
            "Authorization": self._key.authorization(endpoint, self._contact, self._clock()),
        }
        body = encrypt_payload(payload, subscription.p256dh, subscription.auth)
        reply = await self._posts.post_public(endpoint, signed, body)
        if reply.status in _GONE:
            await self._subscriptions.remove(subscription.party, subscription.id)
            return False
        if not 200 <= reply.status < 300:
            raise Unavailable(
                f"{origin_of(endpoint)} answered with status {reply.status}", UPSTREAM_DOWN
            )
        return True

    def _payload(self, notice: ApprovalNotice) -> dict[str, Any]:
        """Return what the browser shows. Of a request it has no more than one line and the ID."""
        said: dict[str, Any] = {
            "phase": notice.phase,
            "text": notice_title(notice)[:MAX_TEXT_LENGTH],
        }
        if notice.phase in (NoticePhase.TEST, NoticePhase.DIGEST):
            return said
        request = notice.request
        status = status_text(request)[:MAX_TEXT_LENGTH]
        # A page of ours, so that a changed payload leads nowhere else.
        page = urlsplit(self._page_url(request, notice.recipient))
        path = f"{page.path}?{page.query}" if page.query else page.path
        return {**said, "id": request.id, "status": status, "path": path}


def _headers(notice: ApprovalNotice) -> dict[str, str]:
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Encoding": "aes128gcm",
        "TTL": str(MIN_TTL_SECONDS),
        "Urgency": "normal" if notice.phase is NoticePhase.DIGEST else "high",
    }
    if notice.requests and notice.phase is not NoticePhase.DIGEST:
        request = notice.request
        left = int((request.expires_at - notice.at).total_seconds())
        headers["TTL"] = str(max(left, MIN_TTL_SECONDS))
        # The newest message about a request replaces the earlier one that was not delivered.
        headers["Topic"] = hashlib.sha256(request.id.encode()).hexdigest()[:32]
    return headers


def encrypt_payload(payload: bytes, browser_key: bytes, auth: bytes) -> bytes:
    """Encrypt a message for one browser, as one record. (RFC 8188, RFC 8291)"""
    own = ec.generate_private_key(_CURVE)
    own_public = encode_public_key(own.public_key())
    theirs = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, browser_key)
    shared = own.exchange(ec.ECDH(), theirs)
    key_info = b"WebPush: info\0" + browser_key + own_public
    secret = _derive(shared, auth, key_info, 32)
    salt = os.urandom(16)
    content_key = _derive(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derive(secret, salt, b"Content-Encoding: nonce\0", 12)
    # The delimiter says that this is the last record.
    sealed = AESGCM(content_key).encrypt(nonce, payload + b"\x02", None)
    return salt + struct.pack(">IB", RECORD_SIZE, len(own_public)) + own_public + sealed


def _derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


def encode_public_key(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64(text: str) -> bytes:
    """Decode base64url without padding. Raises ValueError."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def key_problem(p256dh: bytes, auth: bytes) -> str | None:
    """Return why the keys of a browser cannot be used, or None."""
    if len(auth) != AUTH_BYTES:
        return f"keys.auth must have {AUTH_BYTES} bytes in base64url"
    if len(p256dh) != PUBLIC_KEY_BYTES:
        return f"keys.p256dh must have {PUBLIC_KEY_BYTES} bytes in base64url"
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, p256dh)
    except ValueError:
        return "keys.p256dh is no point of the curve P-256"
    return None
