"""Whom a command asks may be anybody: a gateway, or a stranger that answers as it likes."""

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
