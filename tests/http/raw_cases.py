"""Raw requests by name: what the listener makes of them, and where h11 reads them otherwise."""

from dataclasses import dataclass
from typing import Literal

type Ending = Literal["open", "closed", "cut"] | int


@dataclass(frozen=True, slots=True)
class RawCase:
    """Bytes of a client, the requests that are served, and what becomes of the connection.

    `ending` is `open`, `closed` after the last answer, `cut` without an answer, or the status of a
    refusal. `h11` is empty where h11 reads the same, or says why it does not.
    """

    name: str
    data: bytes
    served: tuple[str, ...]
    ending: Ending
    h11: str = ""
    half_closes: bool = False


HOST = b"host: x\r\n"
URL_BYTES, HEADER_BYTES = 200, 2000


def get(*lines: bytes, target: bytes = b"/a", version: bytes = b"HTTP/1.1") -> bytes:
    head = b"GET " + target + b" " + version + b"\r\n" + HOST
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def post(*lines: bytes, body: bytes = b"") -> bytes:
    return (
        b"POST /p HTTP/1.1\r\n" + HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body
    )


CHUNKED = b"transfer-encoding: chunked"
H2C = (b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")
WEBSOCKET = (b"connection: upgrade", b"upgrade: websocket")

CASES = (
    RawCase("plain GET", get(), ("GET /a",), "open"),
    RawCase("GET with a query", get(target=b"/a?b=c"), ("GET /a?b=c",), "open"),
    RawCase("percent-encoded path", get(target=b"/a%2Fb"), ("GET /a%2Fb",), "open"),
    RawCase("HEAD", get().replace(b"GET", b"HEAD"), ("HEAD /a",), "open"),
    RawCase("DELETE", get().replace(b"GET", b"DELETE"), ("DELETE /a",), "open"),
    RawCase(
        "OPTIONS of the server",
        get(target=b"*").replace(b"GET", b"OPTIONS"),
        ("OPTIONS *",),
        "open",
    ),
    RawCase("absolute-form target", get(target=b"http://x/b?c"), ("GET /b?c",), "open"),
    RawCase(
        "absolute-form target in capitals and with a port",
        get(target=b"http://LOCAL:80/b").replace(b"host: x", b"host: local:80"),
        ("GET /b",),
        "open",
    ),
    RawCase(
        "absolute-form target of another host",
        get(target=b"http://evil.example/b"),
        (),
        400,
        "h11 does not look at targets",
    ),
    RawCase(
        "absolute-form target of another port",
        get(target=b"http://x:81/b"),
        (),
        400,
        "h11 does not look at targets",
    ),
    RawCase(
        "absolute-form target with a user",
        get(target=b"http://x@evil.example/b"),
        (),
        400,
        "h11 does not look at targets",
    ),
    RawCase(
        "absolute-form target without a Host",
        b"GET http://x/b HTTP/1.0\r\n\r\n",
        (),
        400,
        "h11 does not look at targets",
    ),
    RawCase(
        "absolute-form target without a path",
        get(target=b"http://x"),
        (),
        400,
        "h11 does not look at targets",
    ),
    RawCase(
        "CONNECT",
        b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n",
        (),
        400,
        "h11 leaves tunnels to its caller; Comity is no proxy",
    ),
    RawCase(
        "GET with a body",
        get(b"content-length: 2") + b"xy",
        ("GET /a xy",),
        "open",
    ),
    RawCase(
        "POST with a length", post(b"content-length: 5", body=b"hello"), ("POST /p hello",), "open"
    ),
    RawCase("POST with length 0", post(b"content-length: 0"), ("POST /p",), "open"),
    RawCase("POST without a length", post(), ("POST /p",), "open"),
    RawCase(
        "POST on the fast path",
        post(b"content-length: 2", body=b"{}").replace(b"/p", b"/fast"),
        ("POST /fast {}",),
        "open",
    ),
    RawCase(
        "three equal POSTs on the fast path",
        post(b"content-length: 2", body=b"{}").replace(b"/p", b"/fast") * 3,
        ("POST /fast {}", "POST /fast {}", "POST /fast {}"),
        "open",
    ),
    RawCase(
        "PRI of HTTP/2",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        (),
        400,
        "h11 reads the preface as a request",
    ),
    RawCase("header without a blank", get(b"a:b"), ("GET /a",), "open"),
    RawCase("header with a tab", get(b"a:\tb"), ("GET /a",), "open"),
    RawCase("header without a value", get(b"a:"), ("GET /a",), "open"),
    RawCase("header with blanks at its end", get(b"a: b  \t"), ("GET /a",), "open"),
    RawCase(
        "no Host",
        b"GET /a HTTP/1.1\r\n\r\n",
        ("GET /a",),
        "open",
        "Comity refuses it later, in HostOriginCheck",
    ),
    RawCase(
        "two Hosts",
        get(b"host: y"),
        ("GET /a",),
        "open",
        "Comity refuses it later, in refuse_repeated",
    ),
    RawCase(
        "blank line before a request",
        b"\r\n" + get(),
        ("GET /a",),
        "open",
        "RFC 9112 section 2.2 allows it; h11 does not",
    ),
    RawCase(
        "many blank lines before a request",
        b"\r\n" * 50 + get(),
        ("GET /a",),
        "open",
        "RFC 9112 section 2.2 allows it; h11 does not",
    ),
    # Pipelines.
    RawCase("two requests at once", get() + get(target=b"/b"), ("GET /a", "GET /b"), "open"),
    RawCase(
        "POST and GET at once",
        post(b"content-length: 1", body=b"x") + get(),
        ("POST /p x", "GET /a"),
        "open",
    ),
    RawCase(
        "chunks and GET at once",
        post(CHUNKED, body=b"1\r\nx\r\n0\r\n\r\n") + get(),
        ("POST /p x", "GET /a"),
        "open",
    ),
    RawCase("16 requests at once", get() * 16, ("GET /a",) * 16, "open"),
    RawCase("60 requests at once", get() * 60, ("GET /a",), "cut", "a limit of Comity"),
    RawCase(
        "request after the last one",
        get(b"connection: close") + get(target=b"/b"),
        ("GET /a",),
        "closed",
    ),
    RawCase(
        "garbage after a request", get(b"connection: close") + b"garbage", ("GET /a",), "closed"
    ),
    RawCase("half a request after a request", get() + b"GET /b HT", ("GET /a",), 408),
    # Versions and keep-alive.
    RawCase("HTTP/1.0", get(version=b"HTTP/1.0"), ("GET /a",), "closed"),
    RawCase(
        "HTTP/1.0 with keep-alive",
        get(b"connection: keep-alive", version=b"HTTP/1.0"),
        ("GET /a",),
        "closed",
    ),
    RawCase(
        "HTTP/1.0 with a body",
        post(b"content-length: 1", body=b"x").replace(b"1.1", b"1.0"),
        ("POST /p x",),
        "closed",
    ),
    RawCase("connection: close", get(b"connection: close"), ("GET /a",), "closed"),
    RawCase("Connection: CLOSE", get(b"Connection: CLOSE"), ("GET /a",), "closed"),
    RawCase(
        "close among other options", get(b"connection: keep-alive, close"), ("GET /a",), "closed"
    ),
    RawCase("no version", b"GET /a\r\n\r\n", (), 505),
    RawCase("HTTP/0.9", get(version=b"HTTP/0.9"), (), 505, "h11 reads any version"),
    RawCase("HTTP/1.2", get(version=b"HTTP/1.2"), (), 400, "h11 reads any version"),
    RawCase("HTTP/2.0", get(version=b"HTTP/2.0"), (), 505, "h11 reads any version"),
    RawCase("HTTP/1.10", get(version=b"HTTP/1.10"), (), 400),
    RawCase("http/1.1 in lower case", get(version=b"http/1.1"), (), 400),
    RawCase("HTTP/1,1", get(version=b"HTTP/1,1"), (), 400),
    # Expectations and upgrades.
    RawCase(
        "100-continue with the body at once",
        post(b"expect: 100-continue", b"content-length: 1", body=b"x"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "unknown expectation",
        post(b"expect: tea", b"content-length: 1", body=b"x"),
        ("POST /p x",),
        "open",
    ),
    RawCase("offer of h2c", get(*H2C), ("GET /a",), "open"),
    RawCase(
        "offer of h2c with a body",
        post(*H2C, b"content-length: 1", body=b"x"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "offer of h2c with chunks",
        post(*H2C, CHUNKED, body=b"1\r\nx\r\n0\r\n\r\n"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "offer of h2c with both framings",
        post(*H2C, CHUNKED, b"content-length: 1", body=b"0\r\n\r\n"),
        (),
        400,
        "h11 ignores the length; Comity refuses both together",
    ),
    RawCase("WebSocket that is not accepted", get(*WEBSOCKET), ("GET /a",), "open"),
    RawCase(
        "WebSocket with a body",
        post(*WEBSOCKET, b"content-length: 1", body=b"x"),
        (),
        400,
        "h11 leaves it to its caller",
    ),
    RawCase(
        "WebSocket with chunks",
        post(*WEBSOCKET, CHUNKED, body=b"0\r\n\r\n"),
        (),
        400,
        "h11 leaves it to its caller",
    ),
    RawCase("upgrade without the option", get(b"upgrade: websocket"), ("GET /a",), "open"),
    # Lengths, as request smuggling uses them.
    RawCase(
        "length and chunks",
        post(b"content-length: 3", CHUNKED, body=b"0\r\n\r\n"),
        (),
        400,
        "h11 ignores the length; Comity refuses both together",
    ),
    RawCase(
        "chunks and length",
        post(CHUNKED, b"content-length: 3", body=b"0\r\n\r\n"),
        (),
        400,
        "h11 ignores the length; Comity refuses both together",
    ),
    RawCase(
        "equal lengths",
        post(b"content-length: 1", b"content-length: 1", body=b"x"),
        (),
        400,
        "h11 merges equal lengths",
    ),
    RawCase(
        "different lengths", post(b"content-length: 1", b"content-length: 2", body=b"xy"), (), 400
    ),
    RawCase(
        "list of equal lengths",
        post(b"content-length: 1, 1", body=b"x"),
        (),
        400,
        "h11 merges equal lengths",
    ),
    RawCase("list of different lengths", post(b"content-length: 1, 2", body=b"xy"), (), 400),
    RawCase("length with a plus", post(b"content-length: +1", body=b"x"), (), 400),
    RawCase("negative length", post(b"content-length: -1", body=b"x"), (), 400),
    RawCase("hexadecimal length", post(b"content-length: 0x1", body=b"x"), (), 400),
    RawCase("length with a blank in it", post(b"content-length: 1 0", body=b"x" * 10), (), 400),
    RawCase(
        "length with a blank after it",
        post(b"content-length: 1 ", body=b"x"),
        ("POST /p x",),
        "open",
    ),
    RawCase("empty length", post(b"content-length: ", body=b""), (), 400),
    RawCase("length with a letter", post(b"content-length: 1a", body=b"x"), (), 400),
    RawCase("length with an underscore", post(b"content-length: 1_0", body=b"x" * 10), (), 400),
    RawCase(
        "length with leading zeros",
        post(b"content-length: 0001", body=b"x"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "length beyond 64 bits",
        post(b"content-length: 18446744073709551617", body=b"x"),
        (),
        400,
        "h11 has numbers of any size",
    ),
    RawCase("length in other digits", post("content-length: \u0661".encode(), body=b"x"), (), 400),
    RawCase("blank before the colon of a length", post(b"content-length : 1", body=b"x"), (), 400),
    RawCase(
        "length with an underscore in its name",
        post(b"content_length: 1", body=b""),
        ("POST /p",),
        "open",
    ),
    # Transfer codings, as request smuggling uses them.
    RawCase("coding xchunked", post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"), (), 501),
    RawCase("coding chunkedx", post(b"transfer-encoding: chunkedx", body=b"0\r\n\r\n"), (), 501),
    RawCase("coding identity", post(b"transfer-encoding: identity", body=b""), (), 501),
    RawCase(
        "coding chunked, identity",
        post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"),
        (),
        400,
    ),
    RawCase(
        "coding gzip, chunked",
        post(b"transfer-encoding: gzip, chunked", body=b"1\r\nx\r\n0\r\n\r\n"),
        (),
        501,
    ),
    *(
        RawCase(
            f"content encoding {name}",
            post(b"content-encoding: " + name.encode(), b"content-length: 1", body=b"x"),
            (),
            415,
            "h11 leaves contents to its user",
        )
        for name in ("br", "zstd", "gzip", "GZIP", "identity, br", "")
    ),
    RawCase(
        "content encoding on the fast path",
        post(b"content-encoding: br", b"content-length: 1", body=b"x").replace(b"/p", b"/fast"),
        (),
        415,
        "h11 leaves contents to its user",
    ),
    RawCase(
        "content encoding identity",
        post(b"content-encoding: Identity", b"content-length: 1", body=b"x"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "coding chunked, chunked",
        post(b"transfer-encoding: chunked, chunked", body=b"1\r\nx\r\n0\r\n\r\n"),
        (),
        400,
    ),
    RawCase("two codings", post(CHUNKED, CHUNKED, body=b"1\r\nx\r\n0\r\n\r\n"), (), 400),
    RawCase(
        "coding and identity",
        post(CHUNKED, b"transfer-encoding: identity", body=b"0\r\n\r\n"),
        (),
        400,
    ),
    RawCase(
        "coding in capitals",
        post(b"Transfer-Encoding: CHUNKED", body=b"1\r\nx\r\n0\r\n\r\n"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "coding with a tab",
        post(b"transfer-encoding:\tchunked", body=b"1\r\nx\r\n0\r\n\r\n"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "coding with a vertical tab",
        post(b"transfer-encoding: \x0bchunked", body=b"0\r\n\r\n"),
        (),
        400,
    ),
    RawCase(
        "coding on a folded line",
        post(b"transfer-encoding:\r\n chunked", body=b"0\r\n\r\n"),
        (),
        400,
        "h11 unfolds lines",
    ),
    RawCase(
        "coding with a quote", post(b'transfer-encoding: "chunked"', body=b"0\r\n\r\n"), (), 501
    ),
    RawCase(
        "blank before the colon of a coding",
        post(b"transfer-encoding : chunked", body=b"0\r\n\r\n"),
        (),
        400,
    ),
    RawCase(
        "chunks in HTTP/1.0",
        post(CHUNKED, body=b"0\r\n\r\n").replace(b"1.1", b"1.0"),
        ("POST /p",),
        "closed",
    ),
    # Chunks.
    RawCase(
        "chunks",
        post(CHUNKED, body=b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        ("POST /p hello",),
        "open",
    ),
    RawCase(
        "chunk size in capitals",
        post(CHUNKED, body=b"A\r\n0123456789\r\n0\r\n\r\n"),
        ("POST /p 0123456789",),
        "open",
    ),
    RawCase(
        "chunk size with leading zeros",
        post(CHUNKED, body=b"0001\r\nx\r\n0\r\n\r\n"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "chunk with an extension",
        post(CHUNKED, body=b"1;a=b\r\nx\r\n0\r\n\r\n"),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "chunk with a quoted extension",
        post(CHUNKED, body=b'1;a="b;c"\r\nx\r\n0\r\n\r\n'),
        ("POST /p x",),
        "open",
    ),
    RawCase(
        "flood of chunk extensions",
        post(CHUNKED, body=b"1;" + b"a" * 9000),
        (),
        "cut",
        "h11 waits until its own limit",
    ),
    RawCase(
        "many chunks with extensions",
        post(CHUNKED, body=b"1;a=b\r\nx\r\n" * 60 + b"0\r\n\r\n"),
        ("POST /p 60 bytes",),
        "open",
    ),
    RawCase("trailer", post(CHUNKED, body=b"1\r\nx\r\n0\r\na: b\r\n\r\n"), ("POST /p x",), "open"),
    RawCase(
        "trailer with a length",
        post(CHUNKED, body=b"1\r\nx\r\n0\r\ncontent-length: 5\r\n\r\n"),
        (),
        "cut",
        "h11 does not look at trailers; Comity refuses framing in them",
    ),
    RawCase(
        "trailer with a coding",
        post(CHUNKED, body=b"1\r\nx\r\n0\r\ntransfer-encoding: chunked\r\n\r\n"),
        (),
        "cut",
        "h11 does not look at trailers; Comity refuses framing in them",
    ),
    RawCase(
        "flood of trailers",
        post(CHUNKED, body=b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 2000),
        (),
        "cut",
        "h11 waits until its own limit",
    ),
    RawCase("negative chunk size", post(CHUNKED, body=b"-1\r\nx\r\n0\r\n\r\n"), (), "cut"),
    RawCase("chunk size with 0x", post(CHUNKED, body=b"0x1\r\nx\r\n0\r\n\r\n"), (), "cut"),
    RawCase("chunk size with a plus", post(CHUNKED, body=b"+1\r\nx\r\n0\r\n\r\n"), (), "cut"),
    RawCase(
        "chunk size beyond 64 bits",
        post(CHUNKED, body=b"10000000000000001\r\nx\r\n0\r\n\r\n"),
        (),
        "cut",
        "h11 has numbers of up to 20 digits",
    ),
    RawCase("chunk without a size", post(CHUNKED, body=b"\r\nx\r\n0\r\n\r\n"), (), "cut"),
    RawCase(
        "blank after a chunk size",
        post(CHUNKED, body=b"1 \r\nx\r\n0\r\n\r\n"),
        (),
        "cut",
        "h11 allows blanks after the size",
    ),
    RawCase("blank before a chunk size", post(CHUNKED, body=b" 1\r\nx\r\n0\r\n\r\n"), (), "cut"),
    RawCase("chunk longer than its size", post(CHUNKED, body=b"1\r\nxyz\r\n0\r\n\r\n"), (), "cut"),
    RawCase("chunk without its end", post(CHUNKED, body=b"1\r\nx0\r\n\r\n"), (), "cut"),
    RawCase("chunk size ended by a line feed", post(CHUNKED, body=b"1\nx\r\n0\r\n\r\n"), (), "cut"),
    RawCase("chunk ended by a line feed", post(CHUNKED, body=b"1\r\nx\n0\r\n\r\n"), (), "cut"),
    RawCase(
        "line feed in a chunk extension", post(CHUNKED, body=b"1;a\nx\r\n0\r\n\r\n"), (), "cut"
    ),
    RawCase(
        "carriage return in a chunk extension",
        post(CHUNKED, body=b"1;a\rx\r\nx\r\n0\r\n\r\n"),
        (),
        "cut",
        "h11 does not look at extensions",
    ),
    RawCase(
        "last chunk ended by line feeds",
        post(CHUNKED, body=b"0\n\n"),
        (),
        "cut",
        "h11 waits for more",
    ),
    # Heads.
    RawCase(
        "line feeds alone",
        b"GET /a HTTP/1.1\nhost: x\n\n",
        (),
        400,
        "h11 takes a line feed for an end of line",
    ),
    RawCase(
        "one line feed alone",
        b"GET /a HTTP/1.1\r\nhost: x\na: b\r\n\r\n",
        (),
        400,
        "h11 takes a line feed for an end of line",
    ),
    RawCase(
        "head ended by line feeds",
        b"GET /a HTTP/1.1\r\nhost: x\n\n",
        (),
        400,
        "h11 takes a line feed for an end of line",
    ),
    RawCase("carriage return alone", b"GET /a HTTP/1.1\rhost: x\r\n\r\n", (), 400),
    RawCase("carriage return in a value", get(b"a: b\rc"), (), 400),
    RawCase("NUL in a value", get(b"a: b\x00c"), (), 400),
    RawCase("NUL in a name", get(b"a\x00b: c"), (), 400),
    RawCase(
        "control character in a value",
        get(b"a: b\x01c"),
        (),
        400,
        "h11 refuses only NUL and line ends",
    ),
    RawCase("DEL in a value", get(b"a: b\x7fc"), (), 400, "h11 refuses only NUL and line ends"),
    RawCase("byte above ASCII in a value", get(b"a: \xe9"), ("GET /a",), "open"),
    RawCase("byte above ASCII in a name", get(b"\xe9: a"), (), 400),
    RawCase("blank in a name", get(b"a b: c"), (), 400),
    RawCase("blank before a colon", get(b"a : b"), (), 400),
    RawCase("line without a colon", get(b"abc"), (), 400),
    RawCase("line without a name", get(b": b"), (), 400),
    RawCase("folded line", get(b"a: b", b" c"), (), 400, "h11 unfolds lines"),
    RawCase("line folded with a tab", get(b"a: b", b"\tc"), (), 400, "h11 unfolds lines"),
    RawCase("blank before the first header", b"GET /a HTTP/1.1\r\n host: x\r\n\r\n", (), 400),
    RawCase("bracket in a name", get(b"a[]: b"), (), 400),
    # Request lines.
    RawCase("unknown method", get().replace(b"GET", b"BREW"), (), 400, "h11 reads any method"),
    RawCase("method in lower case", get().replace(b"GET", b"get"), (), 400, "h11 reads any method"),
    RawCase("no method", get().replace(b"GET ", b" "), (), 400),
    RawCase(
        "two blanks after the method",
        get().replace(b"GET ", b"GET  "),
        ("GET /a",),
        "open",
        "httptools skips further blanks; the request is the same",
    ),
    RawCase("tab after the method", get().replace(b"GET ", b"GET\t"), (), 400),
    RawCase(
        "two blanks after the target",
        get(target=b"/a "),
        ("GET /a",),
        "open",
        "httptools skips further blanks; the request is the same",
    ),
    RawCase("blank at the end of the request line", get(version=b"HTTP/1.1 "), (), 400),
    RawCase("blank in the target", get(target=b"/a b"), (), 400),
    RawCase("byte above ASCII in the target", get(target=b"/\xe9"), (), 400),
    RawCase("NUL in the target", get(target=b"/\x00"), (), 400),
    RawCase("line feed in the target", get(target=b"/a\nb"), (), 400),
    RawCase("no target", get(target=b""), (), 400),
    RawCase("target without a slash", get(target=b"a"), (), 400, "h11 does not look at targets"),
    RawCase(
        "target with a fragment",
        get(target=b"/a#b"),
        ("GET /a",),
        "open",
        "h11 does not look at targets; Comity drops the fragment",
    ),
    RawCase("hello of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60), (), 400),
    RawCase("greeting of SMTP", b"EHLO x\r\n\r\n", (), 400),
    RawCase(
        "response instead of a request", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", (), 400
    ),
    # Limits.
    RawCase(
        "target of the longest length",
        get(target=b"/" + b"a" * (URL_BYTES - 1)),
        ("GET /" + "a" * (URL_BYTES - 1),),
        "open",
    ),
    RawCase(
        "target that is too long", get(target=b"/" + b"a" * URL_BYTES), (), 414, "a limit of Comity"
    ),
    RawCase(
        "head of the longest length",
        get(b"a: " + b"b" * (HEADER_BYTES - len(get(b"a: ")))),
        ("GET /a",),
        "open",
    ),
    RawCase(
        "head that is too long",
        get(b"a: " + b"b" * (HEADER_BYTES - len(get(b"a: ")) + 1)),
        (),
        431,
        "a limit of Comity",
    ),
    RawCase("too many headers", get(*(b"a: b" for _ in range(500))), (), 431, "a limit of Comity"),
    RawCase("name that is too long", get(b"a" * 3000 + b": b"), (), 431, "a limit of Comity"),
    RawCase(
        "body longer than a head may be",
        post(b"content-length: 100000", body=b"x" * 100_000),
        ("POST /p 100000 bytes",),
        "open",
    ),
    # Requests that do not come in time.
    RawCase("nothing", b"", (), 408),
    RawCase("half a request line", b"GET /a HT", (), 408),
    RawCase("half a header", get()[:-6], (), 408),
    RawCase("head without its last line", get()[:-2], (), 408),
    RawCase(
        "blank lines alone", b"\r\n" * 3, (), 408, "RFC 9112 section 2.2 allows them; h11 does not"
    ),
    RawCase(
        "body that does not come",
        post(b"content-length: 9", body=b"x"),
        (),
        "cut",
        "h11 is not told of the end here",
        half_closes=True,
    ),
    RawCase(
        "chunk that does not come",
        post(CHUNKED, body=b"9\r\nx"),
        (),
        "cut",
        "h11 is not told of the end here",
        half_closes=True,
    ),
    RawCase(
        "head that does not come",
        get()[:-6],
        (),
        "cut",
        "h11 is not told of the end here",
        half_closes=True,
    ),
)
