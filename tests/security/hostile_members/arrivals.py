"""How hostile clients ask to be let in, by name, and the HTTP status that each is answered with."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from tests.security.hostile_members.scene import ANYTHING, UNGRANTED, Scene
from tests.security.hostile_members.wire import head

type Request = Callable[[Scene], bytes]
TOPIC = "arrivals"


@dataclass(frozen=True)
class Arrival:
    """A request for an upgrade, and its status."""

    name: str
    request: Request
    status: int


def _topic(written: str, scene: Scene) -> bytes:
    return head(scene, ANYTHING, written)


def _changed(party: str, changed: dict[str, str | None], scene: Scene) -> bytes:
    return head(scene, party, TOPIC, **changed)


def _shown(header: str, form: str, scene: Scene) -> bytes:
    """The key of one who may come in, shown in another place or form."""
    return head(scene, "", TOPIC, **{header: form.format(scene.key_of(ANYTHING))})


def _in_query(name: str, scene: Scene) -> bytes:
    return head(scene, "", f"{TOPIC}&{name}={scene.key_of(ANYTHING)}")


def _repeated(line: str, scene: Scene) -> bytes:
    asked = head(scene, ANYTHING, TOPIC)
    return asked[:-2] + line.format(scene.key_of(ANYTHING)).encode() + b"\r\n\r\n"


def _replaced(old: bytes, new: bytes, scene: Scene) -> bytes:
    return head(scene, ANYTHING, TOPIC).replace(old, new)


def _basic(scene: Scene) -> bytes:
    pair = base64.b64encode(f"user:{scene.key_of(ANYTHING)}".encode()).decode()
    return head(scene, "", TOPIC, authorization=f"Basic {pair}")


def _revoked(scene: Scene) -> bytes:
    key = scene.given_out.give(ANYTHING)
    scene.given_out.revoke(key)
    return head(scene, "", TOPIC, authorization=f"Bearer {key}")


def _expired(scene: Scene) -> bytes:
    key = scene.given_out.give(ANYTHING, expires_at=datetime.now(UTC) - timedelta(days=1))
    return head(scene, "", TOPIC, authorization=f"Bearer {key}")


def _disabled(scene: Scene) -> bytes:
    key = scene.given_out.give("agent:disabled")
    scene.given_out.disable("agent:disabled")
    return head(scene, "", TOPIC, authorization=f"Bearer {key}")


def _cut_key(scene: Scene) -> bytes:
    return head(scene, "", TOPIC, authorization=f"Bearer {scene.key_of(ANYTHING)[:-1]}")


TOPICS = {
    "no name": "",
    "a slash": "a/b",
    "an encoded slash": "a%2Fb",
    "a way up": "..",
    "an encoded way up": "%2e%2e%2fops",
    "a space": "a+b",
    "an encoded space": "a%20b",
    "a NUL": "a%00",
    "a line break": "a%0d%0aset-cookie:%20x",
    "a star": "*",
    "every subject": "%3E",
    "a part of a pattern": "a.*",
    "another alphabet": "%D0%B0rrivals",
    "broken UTF-8": "%ff%fe",
    "encoded twice": "a%2562",
    "one character too many": "a" * 65,
    "very long": "a" * 4_000,
    "a dot first": ".a",
    "a colon": "system:gateway",
    "two names": "a&topic=b",
    "a mode that is none": "a&mode=none",
    "a mode in capitals": "a&mode=ALL",
    "two modes": "a&mode=all&mode=directed",
    "another's name": "a&as=ana",
    "too many parts": "a" + "".join(f"&x{each}=1" for each in range(20)),
}
PLACES = {
    "in the query as token": partial(_in_query, "token"),
    "in the query as access_token": partial(_in_query, "access_token"),
    "in the query as authorization": partial(_in_query, "authorization"),
    "in a cookie": partial(_shown, "cookie", "token={}"),
    "in another header": partial(_shown, "x-token", "{}"),
    "as the user of Basic": _basic,
    "without its scheme": partial(_shown, "authorization", "{}"),
    "with another scheme": partial(_shown, "authorization", "Token {}"),
    "as a subprotocol without its sign": partial(_shown, "sec-websocket-protocol", "mcpx.v0.1, {}"),
    "as a subprotocol with another sign": partial(
        _shown, "sec-websocket-protocol", "mcpx.v0.1, token.{}"
    ),
    "as a subprotocol that is empty": partial(
        _changed, "", {"sec_websocket_protocol": "mcpx.v0.1, bearer."}
    ),
    "as the key of the handshake": partial(_shown, "sec-websocket-key", "{}"),
    "nowhere": partial(_changed, "", {}),
    "empty": partial(_changed, "", {"authorization": "Bearer "}),
    "guessed": partial(_changed, "", {"authorization": "Bearer cmty_live_0_0"}),
    "very long": partial(_changed, "", {"authorization": "Bearer " + "a" * 30_000}),
    "cut short": _cut_key,
    "revoked": _revoked,
    "past its time": _expired,
    "of one who is disabled": _disabled,
}
ORIGINS = {
    "of another site": "http://evil.example",
    "of no site": "null",
    "that begins like ours": "http://localhost.evil.example",
    "of a file": "file://",
    "that is empty": "",
}
HANDSHAKES: dict[str, tuple[Request, int]] = {
    "an older version": (partial(_changed, ANYTHING, {"sec_websocket_version": "8"}), 400),
    "a version to come": (partial(_changed, ANYTHING, {"sec_websocket_version": "14"}), 400),
    "no version": (partial(_changed, ANYTHING, {"sec_websocket_version": None}), 400),
    "no key": (partial(_changed, ANYTHING, {"sec_websocket_key": None}), 400),
    "a key that is too short": (partial(_changed, ANYTHING, {"sec_websocket_key": "YQ=="}), 400),
    "a key of no base64": (partial(_changed, ANYTHING, {"sec_websocket_key": "?" * 24}), 400),
    "two keys": (partial(_repeated, "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="), 400),
    "no upgrade": (partial(_changed, ANYTHING, {"upgrade": None, "connection": None}), 426),
    "an upgrade to something else": (partial(_changed, ANYTHING, {"upgrade": "h2c"}), 426),
    "an upgrade without a connection": (partial(_changed, ANYTHING, {"connection": "close"}), 426),
    "a body": (partial(_repeated, "content-length: 5"), 400),
    "a body in chunks": (partial(_repeated, "transfer-encoding: chunked"), 400),
    "two credentials": (partial(_repeated, "authorization: Bearer {}"), 400),
    "two hosts": (partial(_repeated, "host: evil.example"), 400),
    "another method": (partial(_replaced, b"GET ", b"POST "), 405),
    "another path below it": (partial(_replaced, b"/ws?", b"/ws/?"), 404),
    "the path in capitals": (partial(_replaced, b"/ws?", b"/WS?"), 404),
    "a path that leads to it": (partial(_replaced, b"/ws?", b"/x/../ws?"), 404),
    "an encoded path": (partial(_replaced, b"/ws?", b"/%77s/?"), 404),
    "a host that is not ours": (partial(_changed, ANYTHING, {"host": "evil.example"}), 421),
    "a header of 100 KiB": (partial(_changed, ANYTHING, {"x_long": "a" * 100_000}), 431),
    "who was granted nothing": (partial(_changed, UNGRANTED, {}), 403),
    "a topic that is private": (lambda scene: head(scene, UNGRANTED, "secret"), 404),
}
ARRIVALS = [
    *(Arrival(f"topic: {name}", partial(_topic, each), 400) for name, each in TOPICS.items()),
    *(Arrival(f"key: {name}", each, 401) for name, each in PLACES.items()),
    *(
        Arrival(f"origin: {name}", partial(_changed, ANYTHING, {"origin": each}), 403)
        for name, each in ORIGINS.items()
    ),
    *(Arrival(f"handshake: {name}", each, status) for name, (each, status) in HANDSHAKES.items()),
]
