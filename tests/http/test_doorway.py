"""Who may speak at the HTTP door, and how a body is read there, without any socket."""

import json
from typing import Any

import pytest

from comity.errors import (
    EXHAUSTED,
    HOST_REFUSED,
    INVALID_PARAMS,
    ORIGIN_REFUSED,
    SERVER_NOT_READY,
    MalformedMessage,
    Unavailable,
)
from comity.http import asgi
from comity.http.asgi import HostOriginCheck, Message, Receive
from tests.support.cases import loop_over


def check(
    host: str | None,
    origin: str | None = None,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
) -> None:
    said = {b"host": host, b"origin": origin}
    headers = {name: value.encode("latin-1") for name, value in said.items() if value is not None}
    HostOriginCheck(hosts, origins).check(headers)


@loop_over(
    "host",
    ["localhost", "LOCALHOST:2664", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:65535", " [::1] "],
)
def test_loopback_is_always_one_of_our_names(host: str) -> None:
    check(host)
    check(host, f"http://{host.strip()}")


@loop_over(
    "host",
    [
        None,
        "",
        "evil.example",
        "localhost.evil.example",
        "evil-localhost",
        "localhost:",
        "localhost:80:80",
        "localhost:port",
        "localhost@evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "127.1",
        "0.0.0.0",
        "2130706433",
        "[::1",
        "[::1]evil",
        "[::1]:",
        "[::ffff:127.0.0.1]",
        "::1",
        "http://localhost",
        "localhost/",
        "localhost\t.evil",
        "null",
    ],
)
def test_a_host_that_is_not_ours_is_refused(host: str | None) -> None:
    with pytest.raises(MalformedMessage) as refused:
        check(host)
    assert refused.value.fault is HOST_REFUSED


@loop_over(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://localhost.evil.example",
        "http://evil.example:80@localhost",
        "http://localhost:80@evil.example",
        "http://localhost:1/path",
        "http://localhost?x",
        "file://localhost",
        "chrome-extension://localhost",
        "localhost",
        "//localhost",
        "http://",
        "http:/localhost",
        "http://localhost http://evil.example",
    ],
)
def test_an_origin_that_is_not_ours_is_refused(origin: str) -> None:
    with pytest.raises(MalformedMessage) as refused:
        check("localhost", origin)
    assert refused.value.fault is ORIGIN_REFUSED


def test_names_that_the_operator_added_are_ours_exactly() -> None:
    known = {"hosts": ("gate.example",), "origins": ("https://app.example:8443/",)}
    check("GATE.example:443", "https://APP.example:8443", **known)
    for host, origin in (
        ("gate.example.evil", None),
        ("x.gate.example", None),
        ("gate.example", "https://app.example"),
        ("gate.example", "http://app.example:8443"),
        ("gate.example", "https://app.example:84430"),
        ("gate.example", "https://gate.example"),
    ):
        with pytest.raises(MalformedMessage):
            check(host, origin, **known)


@loop_over(
    ("host", "origin", "is_let_in"),
    [
        ("gate.example", "https://gate.example", True),
        ("gate.example:8443", "https://gate.example:8443", True),
        ("gate.example", None, True),
        ("localhost:2664", "http://localhost:2664", True),
        ("localhost:2664", "http://localhost:3000", False),
        ("localhost:2664", "http://127.0.0.1:2664", False),
        ("gate.example", "https://app.example:8443", False),
        ("gate.example", "null", False),
        ("gate.example", "ftp://gate.example", False),
        ("evil.example", "https://evil.example", False),
        ("evil.example", None, False),
    ],
)
def test_a_page_of_ours_is_posted_to_from_that_very_place_alone(
    host: str, origin: str | None, is_let_in: bool
) -> None:
    way = HostOriginCheck(("gate.example",), ("https://app.example:8443",))
    said = {b"host": host.encode()} | ({} if origin is None else {b"origin": origin.encode()})
    if is_let_in:
        way.check_page(said)
    else:
        with pytest.raises(MalformedMessage):
            way.check_page(said)


def test_what_was_found_good_is_remembered_and_what_was_refused_is_not() -> None:
    way = HostOriginCheck()
    good = {b"host": b"localhost", b"origin": b"http://localhost"}
    bad = {b"host": b"localhost", b"origin": b"http://evil.example"}
    for _ in range(3):
        way.check(good)
        with pytest.raises(MalformedMessage):
            way.check(bad)


def test_a_flood_of_good_names_is_not_all_remembered() -> None:
    way = HostOriginCheck()
    for port in range(10_000):
        way.check({b"host": b"localhost:%d" % port})
    assert len(way._accepted_pairs) <= 256  # pyright: ignore[reportPrivateUsage]


def said(*messages: Message) -> Receive:
    waiting = list(messages)

    async def receive() -> Message:
        return waiting.pop(0)

    return receive


def piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_is_read_whole_from_its_pieces() -> None:
    whole = await asgi.read_body(said(piece(b"{}")), {}, 10)
    assert whole == b"{}"
    pieces = said(piece(b"[", more=True), piece(b"", more=True), piece(b"]"))
    assert await asgi.read_body(pieces, {b"content-length": b"2"}, 10) == b"[]"


@loop_over("length", [b"11", b"-1", b"+5", b"1e3", b"9" * 40, b"ten", b""])
async def test_a_length_that_is_too_much_or_none_is_refused(length: bytes) -> None:
    with pytest.raises(MalformedMessage) as refused:
        await asgi.read_body(said(), {b"content-length": length}, 10)
    assert refused.value.fault.http_status == 413


async def test_a_client_that_leaves_amid_its_body_is_nobodys_bug() -> None:
    for receive in (
        said({"type": "http.disconnect"}),
        said(piece(b"{", more=True), {"type": "http.disconnect"}),
    ):
        with pytest.raises(MalformedMessage, match="went away"):
            await asgi.read_body(receive, {}, 10)


@loop_over(
    ("error", "status"),
    [
        (MalformedMessage("m"), 400),
        (MalformedMessage("m", INVALID_PARAMS), 400),
        (MalformedMessage("m", HOST_REFUSED), 421),
        (MalformedMessage("m", EXHAUSTED), 503),
        (Unavailable("m"), 503),
        (Unavailable("m", SERVER_NOT_READY), 503),
    ],
)
async def test_a_refusal_is_json_rpc_under_its_status(
    error: MalformedMessage | Unavailable, status: int
) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await asgi.send_refusal(send, error)
    start, body = sent
    told = json.loads(body["body"])
    assert (start["status"], told["id"], told["error"]["message"]) == (status, None, "m")
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(body["body"])
    data = told["error"]["data"]
    assert (data["error_type"], data["reason"]) == (error.fault.error_type, "m")
    assert len(bytes.fromhex(data["trace_id"])) == 16


@loop_over(
    ("origin", "may"),
    [
        (None, True),
        ("http://localhost:2664", True),
        ("https://app.example.org", True),
        ("http://localhost:3000", False),
        ("http://127.0.0.1:2664", False),
        ("https://evil.example", False),
        ("null", False),
    ],
)
def test_a_page_opens_a_websocket_only_from_here_or_from_where_it_was_named(
    origin: str | None, may: bool
) -> None:
    headers = {b"host": b"localhost:2664"}
    if origin is not None:
        headers[b"origin"] = origin.encode()
    way = HostOriginCheck(origins=("https://app.example.org",))
    if may:
        way.check_socket(headers)
        return
    with pytest.raises(MalformedMessage) as error:
        way.check_socket(headers)
    assert error.value.fault is ORIGIN_REFUSED


def test_a_websocket_comes_to_a_name_of_ours() -> None:
    way = HostOriginCheck(origins=("https://app.example.org",))
    with pytest.raises(MalformedMessage) as error:
        way.check_socket({b"host": b"evil.example", b"origin": b"https://app.example.org"})
    assert error.value.fault is HOST_REFUSED
