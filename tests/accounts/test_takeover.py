"""Remote servers of clients that sign in by themselves, after Comity has taken them over."""

import asyncio
import json
import sys
import tomllib
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.accounts.scene import refresh_target
from tests.cli.program import Desk
from tests.console.world import text_of
from tests.identity.login.scene import Browser
from tests.interop.authorization import Realm, authorizing
from tests.interop.processes import answers, http_server, operator_headers, running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
SECONDS = 40.0
COMITY = str(Path(sys.executable).with_name("comity"))


async def connect(origin: str, server: str, realm: Realm) -> None:
    """Sign in to a server as the operator of this machine, by the link that the command prints."""
    async with httpx2.AsyncClient(headers=operator_headers(origin), timeout=SECONDS) as http:
        path = f"/accounts/connect/{server}"
        link = (await http.post(f"{origin}/api/login-links", json={"next": path})).json()
    browser = Browser(origin)
    assert (await browser.get(link["path"])).headers["location"] == path
    begun = await browser.send("POST", path)
    granted = await browser.get(refresh_target(begun))
    done = await browser.get(granted.headers["location"])
    assert "is connected" in done.text, done.text
    assert realm.person == "ana"


def test_servers_of_cursor_vs_code_and_claude_need_one_sign_in_each(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.accounts.protected_server"]
    with (
        authorizing() as realm,
        http_server(lambda port: [*command, str(port), realm.url]) as first,
        http_server(lambda port: [*command, str(port), realm.url]) as second,
        http_server(lambda port: [*command, str(port), realm.url]) as third,
    ):
        desk = Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "state"))
        desk.write(
            "~/.cursor/mcp.json",
            {"mcpServers": {"drafts": {"url": f"{first}/mcp", "auth": "oauth"}}},
        )
        desk.write(
            "~/.claude.json", {"mcpServers": {"notes": {"type": "http", "url": f"{second}/mcp"}}}
        )
        desk.write(
            "~/.config/Code/User/mcp.json",
            {"servers": {"plans": {"type": "http", "url": f"{third}/mcp"}}},
        )
        taken = desk.run("init", "--connect")
        assert taken.status == 0, taken.out + taken.err
        config = desk.folder / "comity.toml"
        entries = {each["id"]: each for each in tomllib.loads(config.read_text())["servers"]}
        assert {name: set(each) for name, each in entries.items()} == {
            "drafts": {"id", "url"},
            "notes": {"id", "url"},
            "plans": {"id", "url"},
        }
        # Tools without annotations wait for approval, which is not the subject here.
        config.write_text(config.read_text().replace('/mcp"', '/mcp"\npolicy = { risk = "safe" }'))
        with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
            origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
            program.wait_until(lambda: answers(f"{origin}/ready"))
            for server in entries:
                asyncio.run(connect(origin, server, realm))
            program.wait_until(lambda: answers(f"{origin}/ready?strict"))
            assert asyncio.run(call_each(origin, sorted(entries))) == ["ana"] * 3
        assert realm.grants.count("authorization_code") == 3


async def call_each(origin: str, servers: list[str]) -> list[str]:
    async with (
        asyncio.timeout(SECONDS),
        Client(streamable_http_client(f"{origin}/mcp")) as client,
    ):
        return [text_of(await client.call_tool(f"{each}__whoami", {})) for each in servers]


def test_the_clients_of_cursor_and_claude_need_an_issuer(tmp_path: Path) -> None:
    desk = Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "state"))
    client = {"CLIENT_ID": "cursor-1", "CLIENT_SECRET": "${env:S}", "scopes": ["read"]}
    far = "https://mcp.example.org/mcp"
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"a": {"url": far, "auth": client}}})
    claude = {"type": "http", "url": f"{far}2", "oauth": {"clientId": "claude-1"}}
    desk.write("~/.claude.json", json.dumps({"mcpServers": {"b": claude}}))
    done = desk.run("init", "--connect", S="x")
    assert done.status == 0, done.out + done.err
    written = tomllib.loads((desk.folder / "comity.toml").read_text())["servers"]
    # Neither client says which issuer knows the client, and no other may get its secret.
    assert [set(each) for each in written] == [{"id", "url"}] * 2
    for client_id in ("cursor-1", "claude-1"):
        assert f"its OAuth client {client_id} is not taken over" in done.out
