"""Answers of token endpoints that are ambiguous as HTTP, byte by byte."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from comity.accounts.messages import IssuerMetadata, OAuthClientCredentials, TokenAnswer
from comity.accounts.oauth_client import OAuthHttpClient
from comity.errors import Unavailable
from comity.http.client.client import default_tls
from comity.http.client.pool import HttpConnectionPool
from tests.accounts.account_node import resolve_nothing

GOOD = json.dumps({"access_token": "good", "token_type": "Bearer"}).encode()
EVIL = json.dumps({"access_token": "evil", "token_type": "Bearer"}).encode()
assert len(GOOD) == len(EVIL)
SIZE = b"%d" % len(GOOD)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)


def answer(*lines: bytes, body: bytes = GOOD, status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join((status, *lines, b"", body))


@asynccontextmanager
async def a_raw_endpoint(*answers: bytes) -> AsyncGenerator[tuple[OAuthHttpClient, IssuerMetadata]]:
    """A token endpoint that gives one answer after the other, whatever is requested."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(left.pop(0))
                await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with HttpConnectionPool(default_tls()) as pool, asyncio.timeout(20):
        oauth = OAuthHttpClient(pool, resolve_nothing)
        try:
            yield oauth, IssuerMetadata(url, url, f"{url}/token")
        finally:
            await oauth.close()
            listener.close()


async def request(oauth: OAuthHttpClient, metadata: IssuerMetadata) -> str:
    """Request a token. Return it, or "refused"."""
    client = OAuthClientCredentials("comity")
    try:
        found = await oauth.request_token(metadata, client, {}, (metadata.issuer,))
    except Unavailable:
        return "refused"
    assert isinstance(found, TokenAnswer)
    return found.access_token


AMBIGUOUS = {
    "two equal lengths": answer(b"Content-Length: " + SIZE, b"Content-Length: " + SIZE),
    "two lengths, the shorter last": answer(b"Content-Length: " + SIZE, b"Content-Length: 2"),
    "two lengths, the longer last": answer(
        b"Content-Length: 2", b"Content-Length: " + SIZE, body=b"{}" + GOOD
    ),
    "a list of lengths": answer(b"Content-Length: %b, %b" % (SIZE, SIZE)),
    "a length with a sign": answer(b"Content-Length: +" + SIZE),
    "a negative length": answer(b"Content-Length: -1"),
    "a hexadecimal length": answer(b"Content-Length: 0x30"),
    "a length of twenty digits": answer(b"Content-Length: " + b"9" * 25),
    "a length and chunks": answer(
        b"Content-Length: " + SIZE, b"Transfer-Encoding: chunked", body=CHUNKED
    ),
    "chunks and a length": answer(
        b"Transfer-Encoding: chunked", b"Content-Length: " + SIZE, body=CHUNKED
    ),
    "chunked twice": answer(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKED
    ),
    "chunked before another coding": answer(b"Transfer-Encoding: chunked, gzip", body=CHUNKED),
    "an unknown coding": answer(b"Transfer-Encoding: xchunked", body=CHUNKED),
    "a blank before the colon": answer(b"Content-Length : " + SIZE),
    "a folded length": answer(b"Content-Length:", b" " + SIZE),
    "a folded header": answer(b"X-A: b", b" c", b"Content-Length: " + SIZE),
    "a header without a name": answer(b": a", b"Content-Length: " + SIZE),
    "a header with a zero byte": answer(b"X-A: \0", b"Content-Length: " + SIZE),
    "a line that ends with a bare carriage return": answer(
        b"X-A: b\rX-C: d", b"Content-Length: " + SIZE
    ),
    "a status of four digits": answer(b"Content-Length: " + SIZE, status=b"HTTP/1.1 2000 OK"),
    "a negative status": answer(b"Content-Length: " + SIZE, status=b"HTTP/1.1 -200 OK"),
    "a switch of protocols": answer(
        b"Upgrade: h2c", b"Connection: upgrade", status=b"HTTP/1.1 101 Switching Protocols"
    ),
    "a redirect with a token": answer(
        b"Location: /thief", b"Content-Length: " + SIZE, status=b"HTTP/1.1 302 Found"
    ),
    "no content with a token": answer(
        b"Content-Length: " + SIZE, status=b"HTTP/1.1 204 No Content"
    ),
    "created with a token": answer(b"Content-Length: " + SIZE, status=b"HTTP/1.1 201 Created"),
    "a body that breaks off": answer(b"Content-Length: 500", b"Connection: close"),
    "an endless chunk size": answer(b"Transfer-Encoding: chunked", body=b"f" * 40 + b"\r\n" + GOOD),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_an_ambiguous_answer_gives_no_token(name: str) -> None:
    async with a_raw_endpoint(AMBIGUOUS[name]) as (oauth, metadata):
        with suppress(TimeoutError):
            assert await asyncio.wait_for(request(oauth, metadata), 3) == "refused"


HONEST = answer(b"Content-Length: " + SIZE)


@pytest.mark.parametrize(
    "first",
    [
        HONEST + answer(b"Content-Length: " + SIZE, body=EVIL),
        answer(status=b"HTTP/1.1 204 No Content", body=b"") + HONEST.replace(GOOD, EVIL),
        answer(b"Content-Length: 0", body=HONEST.replace(GOOD, EVIL)),
        answer(b"Transfer-Encoding: chunked", body=CHUNKED + HONEST.replace(GOOD, EVIL)),
        answer(b"Content-Length: 2", b"Content-Length: " + SIZE, body=b"{}" + EVIL),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + HONEST + HONEST.replace(GOOD, EVIL),
    ],
)
async def test_bytes_after_an_answer_are_not_the_next_answer(first: bytes) -> None:
    async with a_raw_endpoint(first, HONEST, HONEST) as (oauth, metadata):
        await request(oauth, metadata)
        assert await request(oauth, metadata) == "good"
        assert await request(oauth, metadata) == "good"


@pytest.mark.parametrize(
    "changed",
    [
        answer(b"Content-Length: " + SIZE, b"Content-Length: 2"),
        answer(b"Content-Length: 2", b"Content-Length: " + SIZE),
        answer(b"Content-Length: " + SIZE, b"Transfer-Encoding: chunked", body=CHUNKED),
    ],
)
async def test_a_repeated_field_is_refused_after_answers_of_the_same_form(changed: bytes) -> None:
    async with a_raw_endpoint(HONEST, HONEST, HONEST, changed) as (oauth, metadata):
        for _ in range(3):
            assert await request(oauth, metadata) == "good"
        assert await request(oauth, metadata) == "refused"
