"""Connections over TLS and through proxies, to real sockets."""

import asyncio
import functools
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from comity.errors import Misconfigured
from comity.http.client.dial import HttpOrigin, HttpProxy, request_head
from tests.support.cases import loop_over
from tests.support.http_script import (
    OK,
    Recorder,
    Visit,
    answer_always,
    on_both_loops,
    pooled,
    post,
    serving,
)


@functools.cache
def certificate_and_key() -> tuple[bytes, bytes]:
    """A certificate for `localhost` that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@functools.cache
def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder, "chain.pem")
        chain.write_bytes(b"".join(certificate_and_key()))
        context.load_cert_chain(chain)
    return context


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=certificate_and_key()[0].decode())


@on_both_loops
async def test_requests_over_tls_share_a_connection_that_speaks_http_1() -> None:
    async with (
        serving(answer_always, server_context()) as server,
        pooled(tls=client_context()) as pool,
    ):
        for body in (b"one", b"two" * 100_000):
            assert await post(pool, server.origin, body).response() == (200, body)
        assert len(server.visits) == 1
        secured: ssl.SSLObject = server.visits[0].writer.get_extra_info("ssl_object")
        assert secured.selected_alpn_protocol() == "http/1.1"


@on_both_loops
async def test_a_body_over_tls_that_ends_with_the_connection_is_whole() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(b"HTTP/1.1 200 OK\r\n\r\nhello")

    async with serving(script, server_context()) as server, pooled(tls=client_context()) as pool:
        assert await post(pool, server.origin).response() == (200, b"hello")


@on_both_loops
async def test_a_certificate_that_is_not_trusted_fails_and_nothing_is_sent() -> None:
    async with (
        serving(answer_always, server_context()) as server,
        pooled(tls=ssl.create_default_context()) as pool,
    ):
        because = await post(pool, server.origin).failure()
        assert "certificate is not trusted" in because
        assert "nothing was sent" in because
        assert server.visits == []


@on_both_loops
async def test_a_certificate_for_another_name_fails() -> None:
    async with (
        serving(answer_always, server_context()) as server,
        pooled(tls=client_context()) as pool,
    ):
        elsewhere = server.origin._replace(host="127.0.0.1")
        assert "certificate is not trusted" in await post(pool, elsewhere).failure()


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


@on_both_loops
async def test_an_https_request_goes_through_a_tunnel_of_the_proxy() -> None:
    asked: list[bytes] = []

    async def proxy_script(visit: Visit) -> None:
        asked.append(await visit.request())
        reader, writer = await asyncio.open_connection("127.0.0.1", server.origin.port)
        await visit.say(b"HTTP/1.1 200 Connected\r\nVia: test\r\n\r\n")
        try:
            await asyncio.gather(relay(visit.reader, writer), relay(reader, visit.writer))
        finally:
            writer.transport.abort()

    async with serving(answer_always, server_context()) as server, serving(proxy_script) as between:
        proxy = HttpProxy.of(f"http://me:p%40ss@{between.origin.authority}")
        async with pooled(tls=client_context(), proxy=proxy) as pool:
            for body in (b"one", b"two"):
                assert await post(pool, server.origin, body).response() == (200, body)
        assert len(between.visits) == 1
    where = f"localhost:{server.origin.port}".encode()
    assert asked == [
        b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n"
        b"proxy-authorization: Basic bWU6cEBzcw==\r\n\r\n" % (where, where)
    ]


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        (b"HTTP/1.1 407 Who\r\n\r\n", "credentials"),
        (b"HTTP/1.1 403 No\r\n\r\n", "status 403"),
        (b"HTTP/1.1 200 OK\r\n\r\nearly", "did not answer as an HTTP proxy"),
        (b"SSH-2.0\r\n\r\n", "did not answer as an HTTP proxy"),
        (b"x" * 20_000, "did not answer as an HTTP proxy"),
        (b"HTTP/1.1 2", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "cannot be reached"),  # and then no TLS
    ],
)
@on_both_loops
async def test_a_proxy_that_opens_no_tunnel_fails_the_request(answer: bytes, because: str) -> None:
    async def proxy_script(visit: Visit) -> None:
        await visit.request()
        await visit.say(answer)

    async with serving(proxy_script) as between:
        proxy = HttpProxy.of(str(between.origin))
        async with pooled(tls=client_context(), proxy=proxy) as pool:
            assert because in await post(pool, HttpOrigin("https", "localhost", 443)).failure()


@on_both_loops
async def test_a_plain_request_through_a_proxy_names_its_whole_target() -> None:
    seen: list[bytes] = []

    async def proxy_script(visit: Visit) -> None:
        seen.append(await visit.request())
        await visit.say(OK)

    async with serving(proxy_script) as between:
        proxy = HttpProxy.of(f"http://me:secret@{between.origin.authority}")
        async with pooled(proxy=proxy) as pool:
            origin, target = HttpOrigin.of("http://server.invalid:8080/mcp?a=b")
            recorder = Recorder()
            pool.send(origin, request_head("GET", target, origin, []), b"", recorder)
            await recorder.response()
    expected = (
        b"GET http://server.invalid:8080/mcp?a=b HTTP/1.1\r\nhost: server.invalid:8080\r\n"
        b"proxy-authorization: Basic bWU6c2VjcmV0\r\n\r\n"
    )
    assert seen == [expected]


def test_a_proxy_does_not_show_its_credentials() -> None:
    shown = repr(HttpProxy.of("http://me:secret@proxy:3128"))
    assert "secret" not in shown
    assert "bWU6" not in shown


@loop_over("url", ["https://proxy:3128", "socks5://proxy", "proxy:3128"])
def test_a_proxy_that_is_not_spoken_to_in_plain_http_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured):
        HttpProxy.of(url)
