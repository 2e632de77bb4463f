"""Web Push: what a push service and a browser would verify, with real keys and a real server."""

import base64
import json
import struct
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.approvals.notifiers.model import ApprovalNotice, NoticePhase, PushSubscription
from comity.approvals.notifiers.web_push import (
    VapidKey,
    WebPushChannel,
    encode_public_key,
    encrypt_payload,
    key_problem,
)
from comity.errors import Unavailable
from tests.support.http_receiver import Receiver, status
from tests.support.inline_store import inline_records
from tests.support.notifier_scene import ANA, BEN, NOW, PEPPER, a_request, the_posts

CONTACT = "mailto:ops@example.org"
AUTH = bytes(range(16))


class Browser(NamedTuple):
    """A browser that has subscribed, with its private key."""

    key: ec.EllipticCurvePrivateKey
    subscription: PushSubscription

    def read(self, body: bytes) -> dict[str, Any]:
        """Decrypt a message as RFC 8291 says, independently of the sender."""
        salt, rest = body[:16], body[16:]
        size, length = struct.unpack(">IB", rest[:5])
        sender, sealed = rest[5 : 5 + length], rest[5 + length :]
        assert (size, length) == (4096, 65)
        assert len(sealed) <= size
        public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        shared = self.key.exchange(ec.ECDH(), public)
        own = encode_public_key(self.key.public_key())
        secret = derive(shared, AUTH, b"WebPush: info\0" + own + sender, 32)
        key = derive(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
        nonce = derive(secret, salt, b"Content-Encoding: nonce\0", 12)
        opened = AESGCM(key).decrypt(nonce, sealed, None)
        assert opened.endswith(b"\x02")
        return json.loads(opened[:-1])


def derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


def a_browser(endpoint: str, id: str = "one") -> Browser:
    key = ec.generate_private_key(ec.SECP256R1())
    public = encode_public_key(key.public_key())
    return Browser(key, PushSubscription(id, ANA, endpoint, public, AUTH, NOW))


@pytest.fixture
def receiver() -> Generator[Receiver]:
    receiver = Receiver()
    receiver.usual = status(201)
    try:
        yield receiver
    finally:
        receiver.close()


def page_url(request: ApprovalRequest, person: str) -> str:
    return f"https://comity.example.org/approvals/{request.id}?for=token"


class Scene:
    def __init__(self) -> None:
        self.store = inline_records().push_subscriptions
        self.channel = WebPushChannel(
            the_posts(), self.store, VapidKey(PEPPER), page_url, contact=CONTACT, clock=lambda: NOW
        )

    async def send(self, phase: NoticePhase = NoticePhase.REQUESTED, **changed: Any) -> str:
        return await self.channel.send(ApprovalNotice(phase, NOW, (a_request(**changed),), ANA))


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def test_a_browser_decrypts_one_line_and_the_id_and_no_arguments(receiver: Receiver) -> None:
    scene, browser = Scene(), a_browser(f"{receiver.origin}/push/abc")
    await scene.store.put(browser.subscription)
    assert await scene.send() == "push"
    (path, headers, body) = receiver.heard[0]
    assert (path, headers["content-encoding"]) == ("/push/abc", "aes128gcm")
    assert headers["ttl"] == str(15 * 60)
    assert len(headers["topic"]) <= 32
    said = browser.read(body)
    assert said == {
        "phase": "requested",
        "text": "agent:ci wants to call files__write",
        "id": a_request().id,
        "status": "",
        "path": f"/approvals/{a_request().id}?for=token",
    }


async def test_the_token_of_the_sender_is_valid_for_this_service_only(receiver: Receiver) -> None:
    scene, browser = Scene(), a_browser(f"{receiver.origin}/push/abc")
    await scene.store.put(browser.subscription)
    await scene.send()
    scheme, _, rest = receiver.heard[0].headers["authorization"].partition(" ")
    token, _, key = rest.removeprefix("t=").partition(", k=")
    assert (scheme, key) == ("vapid", VapidKey(PEPPER).public_text)
    head, claims, signature = token.split(".")
    assert json.loads(decode(head)) == {"typ": "JWT", "alg": "ES256"}
    said = json.loads(decode(claims))
    assert (said["aud"], said["sub"]) == (receiver.origin, CONTACT)
    assert 0 < said["exp"] - NOW.timestamp() <= 24 * 3600
    raw = decode(signature)
    made = utils.encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode(key))
    public.verify(made, f"{head}.{claims}".encode(), ec.ECDSA(hashes.SHA256()))


def test_all_nodes_with_one_pepper_have_the_same_key() -> None:
    assert VapidKey(PEPPER).public_text == VapidKey(PEPPER).public_text
    assert VapidKey(PEPPER).public_text != VapidKey(b"another").public_text
    assert repr(VapidKey(PEPPER)) == "VapidKey()"


@pytest.mark.parametrize("code", [404, 410])
async def test_a_subscription_that_is_gone_is_removed(receiver: Receiver, code: int) -> None:
    receiver.answers.append(status(code))
    scene = Scene()
    one = a_browser(f"{receiver.origin}/push/one").subscription
    two = a_browser(f"{receiver.origin}/push/two", "two").subscription
    await scene.store.put(replace(one, created_at=NOW + timedelta(seconds=1)))
    await scene.store.put(two)
    assert await scene.send() == "push"
    assert [each.id for each in await scene.store.list_of_party(ANA)] == ["two"]


async def test_a_failing_service_is_tried_again_and_keeps_the_subscription(
    receiver: Receiver,
) -> None:
    receiver.usual = status(503)
    scene = Scene()
    await scene.store.put(a_browser(f"{receiver.origin}/push/SECRET").subscription)
    with pytest.raises(Unavailable) as failed:
        await scene.send()
    assert "SECRET" not in str(failed.value)
    assert len(await scene.store.list_of_party(ANA)) == 1


async def test_a_service_inside_the_network_is_not_reached() -> None:
    scene = Scene()
    await scene.store.put(a_browser("https://10.0.0.1/push").subscription)
    with pytest.raises(Unavailable, match="not allowed"):
        await scene.send()


async def test_a_person_without_a_browser_gets_nothing(receiver: Receiver) -> None:
    scene = Scene()
    await scene.store.put(replace(a_browser(receiver.url).subscription, party=BEN))
    assert await scene.send() == ""
    assert receiver.heard == []


async def test_hostile_text_stays_one_bounded_line(receiver: Receiver) -> None:
    scene, browser = Scene(), a_browser(f"{receiver.origin}/push/abc")
    await scene.store.put(browser.subscription)
    about = {"tool": "x\r\n\u202e<b>" * 500, "risk": "safe", "arguments": {"password": "hunter2"}}
    await scene.send(about=about)
    body = receiver.heard[0].body
    said = browser.read(body)
    assert len(body) < 4096
    assert "\n" not in said["text"]
    assert "\u202e" not in said["text"]
    assert "hunter2" not in json.dumps(said)


async def test_an_end_replaces_the_message_about_the_request(receiver: Receiver) -> None:
    scene, browser = Scene(), a_browser(f"{receiver.origin}/push/abc")
    await scene.store.put(browser.subscription)
    await scene.send()
    await scene.send(NoticePhase.CHANGED, state=ApprovalState.DENIED)
    first, second = receiver.heard
    assert first.headers["topic"] == second.headers["topic"]
    assert browser.read(second.body)["status"] == "Denied."


def test_the_example_of_the_specification_can_be_decrypted() -> None:
    """The keys of the browser in RFC 8291, Appendix A."""
    private = int.from_bytes(decode("q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"))
    key = ec.derive_private_key(private, ec.SECP256R1())
    public = decode(
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
    )
    assert encode_public_key(key.public_key()) == public
    one = Browser(key, PushSubscription("x", ANA, "", public, AUTH, NOW))
    assert one.read(encrypt_payload(b'{"a":1}', public, AUTH)) == {"a": 1}


@pytest.mark.parametrize(
    ("p256dh", "auth"),
    [(b"\x04" + bytes(64), AUTH), (b"\x04" * 64, AUTH), (b"", AUTH), (b"\x04" * 65, b"short")],
)
def test_keys_that_no_browser_has_are_refused(p256dh: bytes, auth: bytes) -> None:
    assert key_problem(p256dh, auth) is not None


async def test_a_person_has_its_own_subscriptions_only() -> None:
    scene = Scene()
    one = a_browser("https://push.example.org/1").subscription
    await scene.store.put(one)
    await scene.store.put(replace(one, party=BEN))
    assert not await scene.store.remove(BEN, "other")
    assert await scene.store.remove(BEN, one.id)
    assert [each.party for each in await scene.store.list_of_party(ANA)] == [ANA]
