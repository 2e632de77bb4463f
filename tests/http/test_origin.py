"""Where requests go, and that nothing smuggled gets into their head."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import Misconfigured
from comity.http.client.dial import HttpOrigin, header_line, request_head
from tests.support.cases import loop_over

ORIGIN = HttpOrigin("http", "example.org", 80)


@loop_over(
    ("url", "origin", "target", "authority"),
    [
        ("http://a.b/mcp", ("http", "a.b", 80), "/mcp", "a.b"),
        ("https://A.b:8443", ("https", "a.b", 8443), "/", "a.b:8443"),
        ("https://a.b:443/?q=1#part", ("https", "a.b", 443), "/?q=1", "a.b"),
        ("http://[::1]:80/x", ("http", "::1", 80), "/x", "[::1]"),
        ("http://[::1]:81/x", ("http", "::1", 81), "/x", "[::1]:81"),
        ("http://b\u00fc.de/\u00e9?\u00e9", ("http", "xn--b-eha.de", 80), "/%C3%A9?%C3%A9",
         "xn--b-eha.de"),
        ("http://a_b:1/a%20b;c=d", ("http", "a_b", 1), "/a%20b;c=d", "a_b:1"),
    ],
)  # fmt: skip
def test_a_url_is_an_origin_and_a_target(
    url: str, origin: tuple[str, str, int], target: str, authority: str
) -> None:
    assert HttpOrigin.of(url) == (HttpOrigin(*origin), target)
    assert HttpOrigin(*origin).authority == authority


@loop_over(
    "url",
    [
        "",
        "a.b/mcp",
        "ftp://a.b/secret",
        "http:///secret",
        "http://a.b:0/secret",
        "http://a.b:99999/secret",
        "http://a.b:x/secret",
        "http://[::1/secret",
        "http://user:secret@a.b/",
        "http://a.b/secret\r\nX: y",
        "http://a.b/se cret",
        "http://a.b\\secret",
        "http://a.b\t/secret",
        f"http://{'a' * 64}.b/secret",
        "http://a..b/secret",
        "http://a'b/secret",
    ],
)
def test_a_url_that_cannot_be_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(Misconfigured) as refusal:
        HttpOrigin.of(url)
    assert "secret" not in str(refusal.value)


def test_a_head_is_lines_ready_for_more_lines() -> None:
    head = request_head("POST", "/mcp", ORIGIN, [("Accept", " a, b "), ("X", "caf\u00e9")])
    assert head == b"POST /mcp HTTP/1.1\r\nhost: example.org\r\nAccept: a, b\r\nX: caf\xe9\r\n"


@given(st.text(), st.text())
def test_a_header_is_one_line_or_refused(name: str, value: str) -> None:
    try:
        line = header_line(name, value)
    except Misconfigured:
        return
    assert line.endswith(b"\r\n")
    assert not any(byte < 32 or byte == 127 for byte in line[:-2])


@loop_over("character", ["\r", "\n", "\0", "\t", "\x1f", "\x7f", "\x85", "\u2028"])
def test_a_value_with_a_character_that_cannot_be_sent_is_refused(character: str) -> None:
    with pytest.raises(Misconfigured) as refusal:
        header_line("Authorization", f"secret{character}X: y")
    assert "Authorization" in str(refusal.value)
    assert "secret" not in str(refusal.value)


@loop_over("name", ["", "a b", "a:", "a\r\nb", "\u00e9", "a\0"])
def test_a_name_that_is_no_token_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured):
        header_line(name, "x")


@loop_over("name", ["Content-Length", "transfer-encoding", "HOST", "Connection"])
def test_headers_that_frame_or_route_a_request_are_not_the_callers(name: str) -> None:
    with pytest.raises(Misconfigured):
        request_head("POST", "/", ORIGIN, [(name, "1")])


@loop_over(
    ("method", "target"),
    [("post", "/"), ("", "/"), ("GET /x", "/"), ("GET", ""), ("GET", "x"), ("GET", "/a b"),
     ("GET", "/\r\n"), ("GET", "/\u00e9")],
)  # fmt: skip
def test_a_request_line_of_other_than_a_method_and_a_path_is_refused(
    method: str, target: str
) -> None:
    with pytest.raises(Misconfigured):
        request_head(method, target, ORIGIN, [])
