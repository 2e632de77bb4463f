"""`servers/sandbox/egress.py`: named attempts to reach what a server was not granted.

Each attempt is made against a real proxy, beside a real listener that counts every TCP accept.
"""

import asyncio
import socket
import struct
from ipaddress import ip_address

import pytest

from comity.servers.sandbox.egress import EgressLimits, end_writing
from comity.servers.sandbox.egress_rules import EgressRules
from tests.servers.sandbox.egress_scene import (
    LIMITS,
    SECONDS,
    EgressScene,
    client_hello,
    egress_scene,
    name_extension,
    small_hello,
)
from tests.support.cases import loop_over
from tests.support.http_script import on_both_loops

GRANTS = (
    *("api.example.com:443", "api.example.com:80", "*.example.org:443", "rebind.example.com:80"),
    *("private.example.com:80", "loop.example.com:{port}", "mixed.example.com:{port}"),
    *("mapped.example.com:{port}", "nat64.example.com:{port}", "sixtofour.example.com:{port}"),
    *("metadata.example.com:80", "10.0.0.5:8080", "nowhere.example.com:80"),
)
OWN_GRANTS = ("127.0.0.1:{port}", "[::1]:{port}", "gateway.example.com:{port}")
PORTED = "Host: api.example.com"


def connect(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1")


def get(url: str, host: str = "", *more: str) -> bytes:
    host = host or url.partition("//")[2].partition("/")[0]
    lines = [f"GET {url} HTTP/1.1", f"Host: {host}", *more, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def api(*more: str, method: str = "POST", body: str = "") -> bytes:
    lines = [f"{method} http://api.example.com/ HTTP/1.1", PORTED, *more, "", body]
    return "\r\n".join(lines).encode("latin-1")


FORBIDDEN_TARGETS: dict[str, tuple[bytes, int]] = {
    "connect to another host": (connect("evil.example.net:443"), 403),
    "connect to another port of a granted host": (connect("api.example.com:{port}"), 403),
    "connect to the ssh port of a granted host": (connect("api.example.com:22"), 403),
    "connect to a loopback address": (connect("127.0.0.1:{port}"), 403),
    "connect to an address of ipv6": (connect("[::1]:{port}"), 403),
    "connect to a mapped address": (connect("[::ffff:127.0.0.1]:{port}"), 403),
    "connect to a mapped address in hexadecimal": (connect("[::ffff:7f00:1]:{port}"), 403),
    "connect to a compatible address": (connect("[::127.0.0.1]:{port}"), 403),
    "connect to a nat64 address": (connect("[64:ff9b::7f00:1]:{port}"), 403),
    "connect to a 6to4 address": (connect("[2002:7f00:1::]:{port}"), 403),
    "connect to an address with a zone": (connect("[fe80::1%25lo]:{port}"), 400),
    "connect to an address with a bare zone": (connect("[::1%lo]:{port}"), 400),
    "connect to ipv6 without brackets": (connect("::1:{port}"), 400),
    "connect to a decimal address": (connect("2130706433:{port}"), 400),
    "connect to a hexadecimal address": (connect("0x7f000001:{port}"), 400),
    "connect to an octal address": (connect("0177.0.0.1:{port}"), 400),
    "connect to an address of two parts": (connect("127.1:{port}"), 400),
    "connect to an address of one part": (connect("0:{port}"), 400),
    "connect to an address with a trailing dot": (connect("127.0.0.1.:{port}"), 400),
    "connect to an address with too large parts": (connect("383.256.256.257:{port}"), 400),
    "connect to the unspecified address": (connect("0.0.0.0:{port}"), 403),
    "connect to a granted address at another port": (connect("10.0.0.5:{port}"), 403),
    "connect to the public address of a granted name": (connect("93.184.216.34:443"), 403),
    "connect to localhost": (connect("localhost:{port}"), 403),
    "connect to localhost with a dot": (connect("localhost.:{port}"), 403),
    "connect to the name of the machine": (connect(f"{socket.gethostname()}:{{port}}"), 403),
    "connect to a mirror name": (connect("127.0.0.1.nip.io:{port}"), 403),
    "connect to the metadata address": (connect("169.254.169.254:80"), 403),
    "connect to a metadata address of ipv6": (connect("[fd00:ec2::254]:80"), 403),
    "connect to the metadata name": (connect("metadata.google.internal:80"), 403),
    "connect to a multicast address": (connect("224.0.0.1:{port}"), 403),
    "connect to upper case of another port": (connect("API.EXAMPLE.COM:{port}"), 403),
    "connect with a trailing dot to another port": (connect("api.example.com.:{port}"), 403),
    "connect with two trailing dots": (connect("api.example.com..:443"), 400),
    "connect without a port": (connect("api.example.com"), 400),
    "connect with an empty port": (connect("api.example.com:"), 400),
    "connect to port zero": (connect("api.example.com:0"), 400),
    "connect with a port that wraps around": (connect("api.example.com:65979"), 400),
    "connect with a signed port": (connect("api.example.com:+443"), 400),
    "connect with a port of leading zeros": (connect("api.example.com:0443"), 400),
    "connect with a user": (connect("api.example.com:443@127.0.0.1:{port}"), 400),
    "connect with a user before": (connect("api.example.com@127.0.0.1:{port}"), 400),
    "connect with a path": (connect("127.0.0.1:{port}/api.example.com:443"), 400),
    "connect with a fragment": (connect("127.0.0.1#api.example.com:443"), 400),
    "connect with a backslash": (connect("127.0.0.1\\api.example.com:443"), 400),
    "connect with a percent sign": (connect("api%2eexample.com:443"), 400),
    "connect with a nul": (connect("api.example.com\0.evil.example.net:443"), 400),
    "connect with a space": (connect("127.0.0.1 api.example.com:443"), 400),
    "connect with a tab": (connect("127.0.0.1\tapi.example.com:443"), 400),
    "connect with a carriage return": (connect("127.0.0.1\rapi.example.com:443"), 400),
    "connect with a line feed": (connect("127.0.0.1\napi.example.com:443"), 400),
    "connect with an ideographic dot": (
        "CONNECT api\u3002example.com:443 HTTP/1.1\r\n\r\n".encode(),
        400,
    ),
    "connect with fullwidth letters": (
        "CONNECT \uff41pi.example.com:443 HTTP/1.1\r\n\r\n".encode(),
        400,
    ),
    "connect with circled digits": (
        "CONNECT \u2460\u2461\u2466.0.0.1:80 HTTP/1.1\r\n\r\n".encode(),
        400,
    ),
    "connect with a name of 300 characters": (connect("a" * 300 + ":443"), 400),
    "connect with a label of 64 characters": (connect("a" * 64 + ".example.org:443"), 400),
    "connect with an empty label": (connect(".example.org:443"), 400),
    "connect with two targets": (connect("api.example.com:443,127.0.0.1:{port}"), 400),
    "connect to a url": (connect("http://127.0.0.1:{port}/"), 400),
    "connect with another host header": (
        b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: evil.example.net:443\r\n\r\n",
        400,
    ),
    "connect with a body": (
        b"CONNECT api.example.com:443 HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd",
        400,
    ),
    "wildcard with another domain at its end": (connect("evilexample.org:443"), 403),
    "wildcard with two labels": (connect("a.b.example.org:443"), 403),
    "wildcard with the domain itself": (connect("example.org:443"), 403),
    "wildcard with a domain behind": (connect("a.example.org.evil.example.net:443"), 403),
    "wildcard with a star": (connect("*.example.org:443"), 400),
    "wildcard at another port": (connect("a.example.org:{port}"), 403),
    "name with a private address": (get("http://private.example.com/"), 403),
    "name with a loopback address": (connect("loop.example.com:{port}"), 403),
    "name with one private address of two": (connect("mixed.example.com:{port}"), 403),
    "name with a mapped address": (connect("mapped.example.com:{port}"), 403),
    "name with a nat64 address": (connect("nat64.example.com:{port}"), 403),
    "name with a 6to4 address": (connect("sixtofour.example.com:{port}"), 403),
    "name with the metadata address": (get("http://metadata.example.com/"), 403),
}

FORBIDDEN_REQUESTS: dict[str, tuple[bytes, int]] = {
    "url of another host": (get("http://evil.example.net/"), 403),
    "url of another port": (get("http://api.example.com:{port}/"), 403),
    "url of a loopback address": (get("http://127.0.0.1:{port}/"), 403),
    "url of localhost": (get("http://localhost:{port}/"), 403),
    "url with a user": (get("http://api.example.com@127.0.0.1:{port}/", "api.example.com"), 400),
    "url with a password": (get("http://a:b@api.example.com/", "api.example.com"), 400),
    "url with a backslash": (get("http://127.0.0.1:{port}\\@api.example.com/"), 400),
    "url with a fragment": (get("http://api.example.com#@127.0.0.1:{port}/"), 400),
    "url without slashes": (get("http:127.0.0.1:{port}/", "api.example.com"), 400),
    "url with three slashes": (get("http:///127.0.0.1:{port}/", "api.example.com"), 400),
    "url with https": (get("https://api.example.com/"), 400),
    "url with ftp": (get("ftp://api.example.com/"), 400),
    "url with file": (get("file:///etc/passwd", "api.example.com"), 400),
    "url with gopher": (get("gopher://127.0.0.1:{port}/", "api.example.com"), 400),
    "url of port 443 without tls": (get("http://api.example.com:443/"), 400),
    "path instead of a url": (get("/", "127.0.0.1:{port}"), 400),
    "two slashes instead of a url": (get("//127.0.0.1:{port}/", "127.0.0.1:{port}"), 400),
    "star instead of a url": (b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 400),
    "trace": (api(method="TRACE"), 400),
    "host header of another host": (get("http://api.example.com/", "evil.example.net"), 400),
    "host header of another port": (get("http://api.example.com/", "api.example.com:{port}"), 400),
    "two host headers": (get("http://api.example.com/", "", "Host: 127.0.0.1:{port}"), 400),
    "no host header": (b"GET http://api.example.com/ HTTP/1.1\r\n\r\n", 400),
    "http 0.9": (b"GET http://api.example.com/\r\n\r\n", 400),
    "http 2.0": (b"GET http://api.example.com/ HTTP/2.0\r\n\r\n", 400),
    "preface of http 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "lower case method": (b"get http://api.example.com/ HTTP/1.1\r\n\r\n", 400),
    "unknown method": (api(method="SMUGGLE"), 400),
    "length and chunks": (api("Content-Length: 3", "Transfer-Encoding: chunked"), 400),
    "two lengths": (api("Content-Length: 3", "Content-Length: 4"), 400),
    "two equal lengths": (api("Content-Length: 3", "Content-Length: 3"), 400),
    "list of lengths": (api("Content-Length: 3, 3"), 400),
    "signed length": (api("Content-Length: +3"), 400),
    "hexadecimal length": (api("Content-Length: 0x3"), 400),
    "length beyond 64 bits": (api("Content-Length: 99999999999999999999"), 400),
    "two codings": (api("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
    "coding that is not chunked": (api("Transfer-Encoding: gzip, chunked"), 400),
    "coding with a prefix": (api("Transfer-Encoding: xchunked"), 400),
    "coding with a vertical tab": (api("Transfer-Encoding: \x0bchunked"), 400),
    "chunks in http 1.0": (
        b"POST http://api.example.com/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
    ),
    "space before a colon": (api("Content-Length : 3"), 400),
    "space before a header": (api(" Content-Length: 3"), 400),
    "folded header": (api("X-A: b", "\tHost: 127.0.0.1:{port}"), 400),
    "header without a colon": (api("X-A"), 400),
    "header with a nul": (api("X-A: b\0c"), 400),
    "bare line feed in the head": (b"GET http://api.example.com/ HTTP/1.1\nHost: x\n\n", 400),
    "bare line feed in a header": (api("X-A: b\nHost: 127.0.0.1:{port}"), 400),
    "bare carriage return in a header": (api("X-A: b\rHost: 127.0.0.1:{port}"), 400),
    "two spaces in the request line": (b"GET  http://api.example.com/ HTTP/1.1\r\n\r\n", 400),
    "tab in the request line": (b"GET\thttp://api.example.com/\tHTTP/1.1\r\n\r\n", 400),
    "blank line first": (b"\r\n" + connect("127.0.0.1:{port}"), 400),
    "head that is too long": (api("X-A: " + "b" * 20_000), 431),
    "head that is too slow": (b"GET http://api.exam", 408),
    "socks 4": (b"\x04\x01\x1f\x90\x7f\0\0\x01\0", 400),
    "socks 5": (b"\x05\x01\0", 400),
    "proxy protocol 1": (b"PROXY TCP4 127.0.0.1 127.0.0.1 1 {port}\r\n" + api(), 400),
    "proxy protocol 2": (b"\r\n\r\n\0\r\nQUIT\n" + b"\x21\x11\0\x0c", 400),
    "tls to the proxy": (client_hello("127.0.0.1"), 400),
    "ssh banner": (b"SSH-2.0-OpenSSH_9\r\n\r\n", 400),
}
TO_THE_GATEWAY: dict[str, tuple[bytes, int]] = {
    "gateway by its granted address": (connect("127.0.0.1:{port}"), 403),
    "gateway by its granted address in a url": (get("http://127.0.0.1:{port}/api"), 403),
    "gateway by its granted address of ipv6": (connect("[::1]:{port}"), 403),
    "gateway by a long form of ipv6": (connect("[0:0:0:0:0:0:0:1]:{port}"), 403),
    "gateway by a granted name": (connect("gateway.example.com:{port}"), 403),
    "gateway by localhost": (get("http://localhost:{port}/"), 403),
    "gateway by a short address": (get("http://127.1:{port}/"), 400),
    "gateway by another loopback address": (connect("127.0.0.2:{port}"), 403),
    "gateway by the unspecified address": (get("http://0.0.0.0:{port}/"), 403),
    "gateway by the unspecified address of ipv6": (get("http://[::]:{port}/"), 403),
    "gateway by a mapped address": (connect("[::ffff:127.0.0.1]:{port}"), 403),
    "gateway by the name of the machine": (connect(f"{socket.gethostname()}:{{port}}"), 403),
}


def status_of(answer: bytes) -> int:
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


async def attempt(scene: EgressScene, data: bytes, status: int) -> None:
    answer = await scene.exchange(data.replace(b"{port}", b"%d" % scene.forbidden.port))
    assert status_of(answer) == status, answer
    assert scene.forbidden.accepts == scene.granted.accepts == 0
    (event,) = scene.events
    assert event.outcome == "refused"
    assert event.reason
    assert scene.proxy.counters.refused == 1


@on_both_loops
@loop_over(
    ("data", "status"),
    [*FORBIDDEN_TARGETS.values(), *FORBIDDEN_REQUESTS.values()],
    ids=[*FORBIDDEN_TARGETS, *FORBIDDEN_REQUESTS],
)
async def test_an_attempt_without_a_grant_reaches_no_listener(data: bytes, status: int) -> None:
    async with egress_scene(*GRANTS) as scene:
        await attempt(scene, data, status)


@on_both_loops
@loop_over(("data", "status"), TO_THE_GATEWAY.values(), ids=TO_THE_GATEWAY)
async def test_the_gateway_is_not_reached_even_where_it_is_granted(
    data: bytes, status: int
) -> None:
    own = [("0.0.0.0", 0), ("::", 0), ("gateway.example.com", 0)]
    async with egress_scene(*OWN_GRANTS, "127.0.0.2:{port}", own=own) as scene:
        await attempt(scene, data, status)


@on_both_loops
async def test_the_forbidden_listener_would_be_reached_with_a_grant() -> None:
    """Otherwise the attempts prove nothing."""
    async with egress_scene("127.0.0.1:{port}", "[::1]:{port}", "evil.example.net:80") as scene:
        port = scene.forbidden.port
        for url in (
            f"http://127.0.0.1:{port}/",
            f"http://[::1]:{port}/",
            "http://evil.example.net/",
        ):
            assert (await scene.exchange(get(url))).endswith(b"ok")
        assert scene.forbidden.accepts == 3


def test_there_are_at_least_sixty_attempts_with_a_name() -> None:
    names = [*FORBIDDEN_TARGETS, *FORBIDDEN_REQUESTS, *TO_THE_GATEWAY, *HELLOS, *PLAIN_FIRST_BYTES]
    assert len(names) == len(set(names)) >= 60


PLAIN_FIRST_BYTES: dict[str, bytes] = {
    "plain http in a tunnel to port 443": b"GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n",
    "preface of http 2 in a tunnel to port 443": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "ssh in a tunnel to port 443": b"SSH-2.0-OpenSSH_9\r\n",
    "connect in a tunnel": connect("evil.example.net:443"),
    "hello of ssl 2": b"\x80\x2e\x01\x03\x01" + bytes(50),
    "alert instead of a hello": b"\x15\x03\x01\0\x02\x01\0",
    "nothing but zeros": bytes(100),
}
_API_NAME = name_extension(b"api.example.com")
HELLOS: dict[str, bytes] = {
    "hello for another host": client_hello("evil.example.net"),
    "hello for a name below": client_hello("x.api.example.com"),
    "hello for the name above": client_hello("example.com"),
    "hello without a name": client_hello(None),
    "hello for an address": client_hello("127.0.0.1"),
    "hello with two names": small_hello(name_extension(b"api.example.com", b"evil.example.net")),
    "hello with two name extensions": small_hello(_API_NAME, name_extension(b"evil.example.net")),
    "hello with a nul in its name": small_hello(name_extension(b"api.example.com\0.evil.net")),
    "hello with a name outside ascii": small_hello(name_extension("äpi.example.com".encode())),
    "hello with an empty name": small_hello(name_extension(b"")),
    "hello with an unknown kind of name": small_hello(b"\0\0\0\x05\0\x03\x01\0\0"),
    "hello with a hidden name and another outside": small_hello(
        name_extension(b"cloud.example.net"), b"\xfe\x0d\0\x04abcd"
    ),
    "hello with a wrong length": small_hello(b"\0\0\xff\xff"),
    "hello with garbage": b"\x16\x03\x01\0\x20\x01\0\0\x1c" + b"\xff" * 28,
    "hello that claims 16 megabytes": b"\x16\x03\x01\x40\0\x01\xff\xff\xff" + bytes(100),
    "hello in an endless row of records": b"\x16\x03\x01\0\x01\x01" + b"\x16\x03\x01\0\x01\0" * 40,
    "hello with an empty record": b"\x16\x03\x01\0\0" * 2 + client_hello("api.example.com"),
    "hello interrupted by an alert": client_hello("api.example.com")[:5]
    + b"\x01\0\x10"
    + bytes(4000),
}


@on_both_loops
@loop_over(
    "data", [*HELLOS.values(), *PLAIN_FIRST_BYTES.values()], ids=[*HELLOS, *PLAIN_FIRST_BYTES]
)
async def test_a_tunnel_for_another_host_carries_no_byte(data: bytes) -> None:
    async with egress_scene(*GRANTS) as scene:
        assert await scene.tunnel(data) == b""
        assert scene.granted.received == b""
        assert [each.outcome for each in scene.events] == ["refused"]


@on_both_loops
@loop_over("name", ["evil.example.net", "api.example.com"])
async def test_a_hello_in_single_bytes_is_read_as_a_whole(name: str) -> None:
    hello = client_hello(name)
    async with egress_scene(*GRANTS) as scene:
        scene.granted.answer = b""
        task = asyncio.create_task(scene.tunnel(*(hello[at : at + 1] for at in range(len(hello)))))
        if name == "api.example.com":
            async with asyncio.timeout(SECONDS):
                while bytes(scene.granted.received) != hello:
                    await asyncio.sleep(0.01)
            await scene.proxy.close()
        assert await task == b""
        assert scene.granted.received == (hello if name == "api.example.com" else b"")


@on_both_loops
async def test_a_hello_in_several_records_is_read_as_a_whole() -> None:
    hello = client_hello("api.example.com")
    cut = b"\x16\x03\x01" + (20).to_bytes(2) + hello[5:25]
    cut += b"\x16\x03\x01" + (len(hello) - 25).to_bytes(2) + hello[25:]
    async with egress_scene(*GRANTS) as scene:
        assert await scene.tunnel(cut + b"!") == scene.granted.answer
        assert scene.granted.received == cut + b"!"


@on_both_loops
async def test_a_hello_on_another_port_must_name_the_host_too() -> None:
    async with egress_scene("api.example.com:8443") as scene:
        target = "api.example.com:8443"
        assert await scene.tunnel(client_hello("evil.example.net"), target=target) == b""
        assert scene.granted.received == b""
        assert await scene.tunnel(b"not TLS!", target=target) == scene.granted.answer


@on_both_loops
async def test_a_name_that_moves_to_a_private_address_is_refused_there() -> None:
    async with egress_scene(*GRANTS) as scene:
        url = get("http://rebind.example.com/")
        assert (await scene.exchange(url)).endswith(b"ok")
        assert scene.resolved == ["rebind.example.com"]
        assert status_of(await scene.exchange(url)) == 403
        assert (scene.granted.accepts, scene.forbidden.accepts) == (1, 0)


@on_both_loops
@loop_over(
    "second",
    [
        get("http://evil.example.net/"),
        connect("evil.example.net:443"),
        get("/", "evil.example.net"),
        b"x",
    ],
)
async def test_a_second_request_on_a_connection_is_not_forwarded(second: bytes) -> None:
    async with egress_scene(*GRANTS) as scene:
        scene.granted.answer = b""
        assert b"200" not in await scene.exchange(api(method="GET") + second)
        assert scene.forbidden.accepts == 0
        assert scene.granted.received.count(b"HTTP/1.1") <= 1
        assert b"evil" not in scene.granted.received


@on_both_loops
@loop_over(
    "body",
    [
        "3\r\nabc\r\n0\r\n\r\nGET http://evil.example.net/ HTTP/1.1\r\n\r\n",
        "3\nabc\n0\n\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "ffffffffffffffffff\r\nabc\r\n",
        "3\r\nabcdef\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
    ],
)
async def test_chunks_that_can_be_read_in_two_ways_end_the_connection(body: str) -> None:
    async with egress_scene(*GRANTS) as scene:
        scene.granted.answer = b""
        assert await scene.exchange(api("Transfer-Encoding: chunked", body=body)) == b""
        assert b"GET" not in scene.granted.received
        assert scene.forbidden.accepts == 0


@on_both_loops
@loop_over("is_split", [False, True])
async def test_a_body_with_chunks_is_forwarded_in_chunks_of_the_proxy(is_split: bool) -> None:
    async with egress_scene(*GRANTS) as scene:
        scene.granted.until = (b"0\r\n\r\n",)
        body = "4;name=value\r\n\n\nab\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n"
        request = api("Transfer-Encoding: chunked", body=body)
        parts = [request[at : at + 1] for at in range(len(request))] if is_split else [request]
        assert (await scene.exchange(*parts)).endswith(b"ok")
        head, _, forwarded = bytes(scene.granted.received).partition(b"\r\n\r\n")
        assert head.endswith(b"Transfer-Encoding: chunked\r\nConnection: close")
        assert forwarded.endswith(b"1\r\n!\r\n0\r\n\r\n")
        assert b"name" not in forwarded
        assert b"Trailer" not in forwarded


@on_both_loops
async def test_hop_by_hop_headers_stay_at_the_proxy() -> None:
    async with egress_scene(*GRANTS) as scene:
        more = (
            *("Connection: keep-alive, X-Hop", "X-Hop: 1", "Keep-Alive: 5", "TE: trailers"),
            *(
                "Upgrade: h2c",
                "HTTP2-Settings: AAMAAABkAAQAAP__",
                "Proxy-Authorization: Basic YQ==",
            ),
            *("Proxy-Connection: keep-alive", "X-End: 2", "Content-Length: 4"),
        )
        scene.granted.until = (b"bod!",)
        assert (await scene.exchange(api(*more, body="bod!"))).endswith(b"ok")
        assert bytes(scene.granted.received) == (
            b"POST / HTTP/1.1\r\nHost: api.example.com\r\nx-end: 2\r\nContent-Length: 4\r\n"
            b"Connection: close\r\n\r\nbod!"
        )


@on_both_loops
async def test_a_redirect_is_given_to_the_client_and_not_followed() -> None:
    async with egress_scene(*GRANTS) as scene:
        scene.granted.answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%d/\r\n\r\n" % (
            scene.forbidden.port
        )
        assert status_of(await scene.exchange(api(method="GET"))) == 302
        assert scene.forbidden.accepts == 0


@on_both_loops
@pytest.mark.parametrize(
    ("asked", "target", "word"),
    [
        ("Evil.Example.NET.:443", "evil.example.net:443", "evil.example.net:443"),
        ("[2606:4700::1111]:443", "[2606:4700::1111]:443", "'[2606:4700::1111]:443'"),
        (f"{'a' * 63}.example.net:8443", *([f"{'a' * 63}.example.net:8443"] * 2)),
    ],
)
async def test_a_refusal_names_the_permission_and_the_command(
    asked: str, target: str, word: str
) -> None:
    async with egress_scene(*GRANTS) as scene:
        answer = await scene.exchange(connect(asked))
        assert answer.decode().rpartition("\r\n\r\n")[2] == (
            f"network.outbound for {target} is not granted; a person can approve it, and then the "
            f"server restarts: comity servers permissions approve files network.outbound --reach "
            f"{word}\n"
        )


@on_both_loops
# Python 3.13 writes the last address as [::ffff:10.0.0.1].
@pytest.mark.parametrize(
    "target", ["localhost:80", "0.0.0.0:80", f"[{ip_address('::ffff:a00:1')}]:80"]
)
async def test_a_refusal_names_no_command_that_would_be_refused_too(target: str) -> None:
    async with egress_scene(*GRANTS) as scene:
        answer = await scene.exchange(connect(target))
        assert f"network.outbound for {target} is not granted: ".encode() in answer
        assert b"comity servers" not in answer


@on_both_loops
@pytest.mark.parametrize("host", ["$(id)", "a;id", "a b", "-x", "`id`", "a'b", "é.example"])
async def test_a_refusal_has_no_command_for_a_hostile_host(host: str) -> None:
    async with egress_scene(*GRANTS) as scene:
        answer = await scene.exchange(connect(f"{host}:443"))
        assert b"comity servers" not in answer


@on_both_loops
async def test_events_hold_sizes_and_no_secret() -> None:
    async with egress_scene(*GRANTS) as scene:
        secret = "hush"
        await scene.exchange(
            get(f"http://api.example.com/{secret}?{secret}", "", f"Authorization: {secret}")
        )
        await scene.exchange(get(f"http://me:{secret}@api.example.com/{secret}", "x"))
        await scene.exchange(get(f"http://evil.example.net/{secret}"))
        await scene.tunnel(client_hello(f"{secret}.example.net"))
        async with asyncio.timeout(SECONDS):
            while len(scene.events) < 4:
                await asyncio.sleep(0.01)
        assert secret not in repr(scene.events)
        allowed = scene.events[0]
        assert (allowed.outcome, allowed.host, allowed.port) == ("allowed", "api.example.com", 80)
        assert allowed.bytes_sent == len(scene.granted.received)
        assert allowed.bytes_received == len(scene.granted.answer)
        counters = scene.proxy.counters
        assert (counters.connections, counters.refused) == (4, 3)


@on_both_loops
async def test_a_server_that_is_refused_in_a_loop_does_not_flood_the_events() -> None:
    async with egress_scene(*GRANTS) as scene:
        for _ in range(80):
            await scene.exchange(b"?")
        assert len(scene.events) < 70
        assert scene.proxy.counters.refused == 80


@on_both_loops
async def test_connections_beyond_the_limit_are_refused() -> None:
    limits = EgressLimits(connections=3, head_seconds=20.0)
    async with egress_scene(*GRANTS, limits=limits) as scene:
        kept = [await asyncio.open_connection("127.0.0.1", scene.port) for _ in range(3)]
        # An answer would keep one more connection open.
        assert await scene.exchange() == b""
        (event,) = scene.events
        assert (event.outcome, "too many connections" in event.reason) == ("refused", True)
        assert scene.proxy.counters.open_connections <= 4
        kept.pop()[1].close()
        async with asyncio.timeout(SECONDS):
            while scene.proxy.counters.open_connections > 2:
                await asyncio.sleep(0.01)
        assert (await scene.exchange(api(method="GET"))).endswith(b"ok")
        for _, writer in kept:
            writer.close()


@on_both_loops
async def test_the_end_of_a_reset_connection_is_no_error() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, accepted)
        transport.pause_reading()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        end_writing(transport)
        transport.abort()


@on_both_loops
async def test_a_slow_client_receives_the_last_bytes_too() -> None:
    limits = EgressLimits(farewell_seconds=0.01)
    async with egress_scene(*GRANTS, limits=limits, send_buffer=4096) as scene:
        body = bytes(range(256)) * 200
        scene.granted.answer = b"HTTP/1.1 200 OK\r\n\r\n" + body
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", scene.port))
            await loop.sock_sendall(client, api(method="GET"))
            # The time is the subject: the client reads nothing for much longer than a farewell.
            await asyncio.sleep(0.3)
            found = bytearray()
            while part := await loop.sock_recv(client, 65536):
                found += part
        assert found.endswith(body)


@on_both_loops
async def test_an_idle_tunnel_is_ended() -> None:
    limits = EgressLimits(idle_seconds=0.2)
    async with egress_scene("api.example.com:8443", limits=limits) as scene:
        assert await scene.tunnel(b"x", target="api.example.com:8443") == b""


@on_both_loops
async def test_a_host_that_cannot_be_reached_is_told_from_one_that_is_refused() -> None:
    async with egress_scene(*GRANTS, "127.0.0.1:1") as scene:
        assert status_of(await scene.exchange(get("http://nowhere.example.com/"))) == 502
        assert status_of(await scene.exchange(connect("127.0.0.1:1"))) == 502
        assert [each.outcome for each in scene.events] == ["failed", "failed"]


@on_both_loops
async def test_a_revoked_grant_ends_its_connections_at_once() -> None:
    async with egress_scene("api.example.com:8443") as scene:
        scene.granted.answer = b""
        task = asyncio.create_task(scene.tunnel(b"abc", target="api.example.com:8443"))
        async with asyncio.timeout(SECONDS):
            while bytes(scene.granted.received) != b"abc":
                await asyncio.sleep(0.01)
        scene.proxy.replace_rules(EgressRules(["api.example.com:8443"]))
        await asyncio.sleep(0)
        assert not task.done()
        scene.proxy.replace_rules(EgressRules(["api.example.com:443"]))
        assert await task == b""
        assert status_of(await scene.exchange(connect("api.example.com:8443"))) == 403


@on_both_loops
async def test_closing_ends_connections_in_every_phase_even_if_it_is_cancelled() -> None:
    async with egress_scene("api.example.com:8443", limits=LIMITS) as scene:
        scene.granted.answer = b""
        head = await asyncio.open_connection("127.0.0.1", scene.port)
        head[1].write(b"CONNECT")
        tunnel = asyncio.create_task(scene.tunnel(b"abc", target="api.example.com:8443"))
        async with asyncio.timeout(SECONDS):
            while bytes(scene.granted.received) != b"abc":
                await asyncio.sleep(0.01)
        closing = asyncio.create_task(scene.proxy.close())
        await asyncio.sleep(0)
        closing.cancel()
        assert await tunnel == b""
        async with asyncio.timeout(SECONDS):
            await scene.proxy.close()
        assert scene.proxy.counters.open_connections == 0
        head[1].close()
