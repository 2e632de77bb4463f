"""Addresses and headers that clients, probes and browsers expect of any gateway."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from comity.console.endpoint import ConsoleFiles
from tests.cli.program import Desk
from tests.interop.processes import comity

pytestmark = pytest.mark.integration

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
LIST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/list",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
MCP = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/list",
}

type Reply = tuple[int, dict[str, str], str]


class Gateway:
    """A gateway whose clients need keys, with one key."""

    def __init__(self, origin: str, key: str) -> None:
        self.origin, self.key = origin, key

    def send(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: object = None
    ) -> Reply:
        connection = http.client.HTTPConnection(urlsplit(self.origin).netloc, timeout=30)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), headers or {}
            )
            reply = connection.getresponse()
            found = {name.lower(): value for name, value in reply.getheaders()}
            return reply.status, found, reply.read().decode()
        finally:
            connection.close()

    def list_tools(self, headers: dict[str, str]) -> int:
        return self.send("POST", "/mcp", {**MCP, **headers}, LIST)[0]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("conventions")
    desk = Desk(root)
    store = f"sqlite:///{desk.folder}/comity.db"
    config = desk.write(
        "comity.toml",
        'port = 0\nallowed_origins = ["https://app.example.org"]\n'
        f'[identity]\nmode = "required"\n[store]\nurl = "{store}"\n',
    )
    out = str(desk.folder / "key")
    made = desk.run("keys", "create", "agent:a", "--offline", "--out", out)
    assert made.status == 0, made
    key = Path(out).read_text().strip()
    with comity(config, path="/readyz") as origin:
        yield Gateway(origin, key)


def test_probes_have_the_names_of_kubernetes_too(gateway: Gateway) -> None:
    for path in ("/health", "/healthz", "/livez", "/ready", "/readyz"):
        status, _, body = gateway.send("GET", path)
        assert (status, json.loads(body)["status"] in ("ok", "ready")) == (200, True), path
    # The names of servers stay behind a key at each of these addresses.
    for path in ("/ready?server=x", "/readyz?server=x"):
        assert gateway.send("GET", path)[0] == 401


def test_a_key_is_taken_in_either_header(gateway: Gateway) -> None:
    key, wrong = gateway.key, gateway.key[:-1] + ("a" if gateway.key[-1] != "a" else "b")
    bearer = {"Authorization": f"Bearer {key}"}
    assert gateway.list_tools(bearer) == 200
    assert gateway.list_tools({"X-API-Key": key}) == 200
    assert gateway.list_tools({"X-API-Key": key, **bearer}) == 200
    assert gateway.list_tools({}) == 401
    assert gateway.list_tools({"X-API-Key": wrong}) == 401
    assert gateway.send("GET", "/tools", {"X-API-Key": key})[0] == 200


def test_two_different_credentials_are_refused_and_not_repeated(gateway: Gateway) -> None:
    for shown in ("Bearer another", "Basic abc"):
        headers = {**MCP, "X-API-Key": gateway.key, "Authorization": shown}
        status, _, body = gateway.send("POST", "/mcp", headers, LIST)
        assert (status, "Authorization and X-API-Key differ" in body) == (400, True)
        assert gateway.key not in body


def test_a_wrong_key_in_either_header_is_called_invalid(gateway: Gateway) -> None:
    _, headers, _ = gateway.send("POST", "/mcp", {**MCP, "X-API-Key": "no"}, LIST)
    assert 'error="invalid_token"' in headers["www-authenticate"]


def test_a_page_of_an_allowed_origin_may_send_the_header(gateway: Gateway) -> None:
    preflight = {
        "Origin": "https://app.example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key, content-type",
    }
    status, headers, _ = gateway.send("OPTIONS", "/mcp", preflight)
    assert status == 204
    assert "x-api-key" in headers["access-control-allow-headers"]


def test_a_browser_is_led_to_the_console_or_sees_a_page_without_scripts(
    gateway: Gateway,
) -> None:
    status, headers, body = gateway.send("GET", "/", BROWSER)
    if ConsoleFiles().is_built:
        assert (status, headers["location"]) == (303, "/console/")
        return
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script" not in body + policy
    assert f"{gateway.origin}/mcp" in body
    assert 'href="/health"' in body
    status, _, body = gateway.send("HEAD", "/", BROWSER)
    assert (status, body) == (200, "")


def test_a_program_gets_no_page(gateway: Gateway) -> None:
    status, headers, _ = gateway.send("GET", "/", {"X-API-Key": gateway.key})
    assert (status, headers["content-type"]) == (404, "application/json")
    assert gateway.send("POST", "/", {**BROWSER, "X-API-Key": gateway.key})[0] == 404


def test_a_browser_gets_refusals_as_pages(gateway: Gateway) -> None:
    for path, key, status in (
        ("/no/<b>such", gateway.key, 404),
        ("/no/such", "", 401),
        ("/api/keys", "", 401),
        ("/tools", "", 401),
    ):
        headers = {**BROWSER, **({"X-API-Key": key} if key else {})}
        found, told, body = gateway.send("GET", path, headers)
        assert (found, told["content-type"]) == (status, "text/html; charset=utf-8"), path
        assert "jsonrpc" not in body
        assert "<b>" not in body
