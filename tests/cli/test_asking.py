"""Whom a command asks may be anybody: a gateway, or a stranger that answers as it likes."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest

from comity.cli.asking import Gateway
from comity.wire.errors import Misconfigured, Unavailable
from tests.cli.scripted_gateway import JSON, Heard, Said, scripted_gateway


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "text/html", b"<html>"),
        (200, JSON, b"[]"),
        (200, JSON, b"{"),
        (404, "text/html", b"not here"),
        (404, JSON, b'{"detail": "Not Found"}'),
        (500, JSON, b'{"error": {"message": "a bug"}}'),
    ],
)
def test_what_is_no_gateway_is_told_apart_from_one(status: int, kind: str, body: bytes) -> None:
    with (
        scripted_gateway(lambda _: (status, kind, body)) as stranger,
        pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:\d+"),
    ):
        Gateway(stranger.url).status()


@pytest.mark.parametrize("banner", [b'INFO {"server_id":"N1"}\r\n', b"220 mail\r\n" * 9000])
def test_a_service_that_does_not_speak_http_is_told_without_its_words(banner: bytes) -> None:
    with _service(banner) as url, pytest.raises(Unavailable) as refused:
        Gateway(url).status()
    assert str(refused.value) == (
        f"{url} does not answer as an HTTP server, so it is no Comity gateway; say where yours is "
        "with --url or COMITY_URL"
    )


def test_a_connection_that_ends_without_an_answer_is_told_so() -> None:
    with (
        _service(b"") as url,
        pytest.raises(Unavailable, match=r"before its answer was whole.*comity serve"),
    ):
        Gateway(url).status()


@contextmanager
def _service(banner: bytes) -> Generator[str]:
    """A service that greets whoever comes, and speaks another protocol than HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            with listening.accept()[0] as connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(banner)

        greeting = threading.Thread(target=greet, daemon=True)
        greeting.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        greeting.join(10)


def test_a_refusal_is_told_in_the_gateways_own_words() -> None:
    refusal = b'{"error": {"message": "there is no server \'x\'"}}'
    with (
        scripted_gateway(lambda _: (404, JSON, refusal)) as gateway,
        pytest.raises(Misconfigured, match="there is no server 'x'"),
    ):
        Gateway(gateway.url).get("servers", "x")


def test_every_page_of_the_tools_is_read() -> None:
    def script(heard: Heard) -> Said:
        if "cursor=more" in heard.path:
            return 200, JSON, b'{"tools": [{"name": "b"}]}'
        return 200, JSON, b'{"tools": [{"name": "a"}], "next": "more"}'

    with scripted_gateway(script) as gateway:
        tools = Gateway(gateway.url).tools(search="x y")
        assert [tool["name"] for tool in tools] == ["a", "b"]
    assert gateway.heard[0].path == "/api/tools?search=x+y"


def test_no_name_leads_out_of_its_place() -> None:
    with scripted_gateway(lambda _: (200, JSON, b"{}")) as gateway:
        Gateway(gateway.url).get("servers", "../status?x=#y")
    assert gateway.heard[0].path == "/api/servers/..%2Fstatus%3Fx%3D%23y"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:2664", "http://127.0.0.1:2664"),
        ("http://127.0.0.1:2664/mcp", "http://127.0.0.1:2664"),
        ("127.0.0.1:3000", "http://127.0.0.1:3000"),
        ("https://user:secret@gw.example.org/x", "https://gw.example.org"),
        ("http://[::1]:5", "http://[::1]:5"),
    ],
)
def test_an_address_is_understood_as_people_give_it(given: str, url: str) -> None:
    assert Gateway(given).url == url
