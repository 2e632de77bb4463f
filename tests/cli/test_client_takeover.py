"""`comity init --connect` and `comity clients connect`: servers moved to Comity, and keys."""

import asyncio
import json
import stat
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.cli.program import EXAMPLE, Desk
from tests.interop.processes import comity, free_port

pytestmark = pytest.mark.timeout(600)

SECONDS = 120.0
HERE = "http://127.0.0.1:2664/mcp"
ZED = """\
// Zed settings
{
  "theme": "One", // nice
  "context_servers": {
    "files": { "command": "npx", "args": ["-y", "files"] }, // my files
    "extension": { "settings": {} },
  },
}
"""
CURSOR = """\
{
\t"mcpServers": {
\t\t"web": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer canary"}}
\t}
}"""
CODEX = '# mine\n[mcp_servers.db]\ncommand = "db"\n\n# fast\n[profiles.fast]\nx = 1\n'
GOOSE = """\
GOOSE_MODEL: x
extensions:
  developer:
    enabled: true
    type: builtin
    name: developer
  memo: # notes
    enabled: true
    type: stdio
    name: memo
    cmd: memo
    args:
    - --all
    env_keys:
    - MEMO_TOKEN
"""
OPENCODE = (
    '{"mcp": {"code": {"type": "local", "command": ["code", "{env:HOME}"], "enabled": false}}}'
)
CLAUDE = {"mcpServers": {"user": {"command": "u"}}, "numStartups": 5}
FILES = {
    "~/.config/zed/settings.json": ZED,
    "~/.cursor/mcp.json": CURSOR,
    "~/.codex/config.toml": CODEX,
    "~/.config/goose/config.yaml": GOOSE,
    "~/.config/opencode/opencode.json": OPENCODE,
}


ANY_HOST = {"policy": {"permissions": {"network.outbound": ["*"]}}}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "state"))


def servers_of(path: Path) -> dict[str, Any]:
    return {each.pop("id"): each for each in tomllib.loads(path.read_text())["servers"]}


def write_all(desk: Desk) -> dict[Path, bytes]:
    files = {desk.write(name, text): text.encode() for name, text in FILES.items()}
    claude = {**CLAUDE, "projects": {str(desk.folder): {"mcpServers": {"here": {"command": "h"}}}}}
    path = desk.write("~/.claude.json", claude)
    return {**files, path: path.read_bytes()}


def test_all_servers_move_to_comity_and_back(desk: Desk) -> None:
    before = write_all(desk)
    ran = desk.run("init", "--connect", "--yes")
    assert ran.status == 0, ran.out + ran.err
    assert "canary" not in ran.out
    config = desk.folder / "comity.toml"
    assert servers_of(config) == {
        "user": {"command": "u", **ANY_HOST},
        "here": {"command": "h", **ANY_HOST},
        "web": {
            "url": "https://example.org/mcp",
            "headers": {"Authorization": "Bearer canary"},
        },
        "files": {"command": "npx", "args": ["-y", "files"], **ANY_HOST},
        "db": {"command": "db", **ANY_HOST},
        "memo": {
            "command": "memo",
            "args": ["--all"],
            "env": {"MEMO_TOKEN": "${MEMO_TOKEN:-}"},
            **ANY_HOST,
        },
        "code": {"command": "code", "args": ["${HOME}"], "disabled": True, **ANY_HOST},
    }
    listed = {each["client"]: each for each in desk.run("clients", "-o", "json").json["clients"]}
    for client, left in (("zed", 2), ("cursor", 1), ("codex", 1), ("goose", 2), ("opencode", 1)):
        assert (listed[client]["comity"], listed[client]["servers"]) == (HERE, left)
    claude = json.loads((desk.home / ".claude.json").read_text())
    assert set(claude["mcpServers"]) == {"comity"}
    assert claude["projects"][str(desk.folder)]["mcpServers"] == {}
    zed = (desk.home / ".config/zed/settings.json").read_text()
    assert '// Zed settings\n{\n  "theme": "One", // nice\n' in zed
    for client in listed:
        assert desk.run("clients", "disconnect", client).status == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_second_run_adds_what_is_new_and_loses_nothing(desk: Desk) -> None:
    desk.write("~/.cursor/mcp.json", CURSOR)
    assert desk.run("init", "--connect", "--yes").status == 0
    config = desk.folder / "comity.toml"
    # The operator replaced the secret, which makes it no other server.
    edited = "# mine\n" + config.read_text().replace("Bearer canary", "Bearer ${WEB_TOKEN:-}")
    config.write_text(edited)
    desk.write("~/.codex/config.toml", CODEX)
    ran = desk.run("init", "--connect", "--yes")
    assert (ran.status, "Added to comity.toml: db." in ran.out) == (0, True)
    assert config.read_text().startswith(edited)
    assert set(servers_of(config)) == {"web", "db"}
    again = desk.run("init", "--connect", "--yes", "-o", "json")
    assert config.read_text().count("[[servers]]") == 2
    assert {each["client"]: each["moved"] for each in again.json["connected"]} == {
        "cursor": ["web"],
        "codex": ["db"],
    }
    # What was moved out is not forgotten when everything is written anew.
    assert desk.run("init", "--force").status == 0
    assert set(servers_of(config)) == {"web", "db"}


def test_one_client_that_cannot_be_changed_keeps_no_other_from_it(desk: Desk) -> None:
    desk.write("~/.cursor/mcp.json", CURSOR)
    odd = desk.write("~/.codex/config.toml", 'mcp_servers = {a = {command = "x"}}\n')
    ran = desk.run("init", "--connect", "--yes", "-o", "json")
    assert ran.status == 1
    found = {each["client"]: each for each in ran.json["connected"]}
    assert (found["cursor"]["problem"], found["cursor"]["moved"]) == (None, ["web"])
    assert "by hand" in found["codex"]["problem"]
    assert odd.read_text() == 'mcp_servers = {a = {command = "x"}}\n'


def test_the_file_of_a_project_changes_only_when_it_is_named(desk: Desk) -> None:
    before = '{"servers": {"p": {"command": "p"}}} // ours\n'
    path = desk.write(".vscode/mcp.json", before)
    ran = desk.run("init", "--connect", "--yes")
    assert (path.read_text(), "--project --replace" in ran.out) == (before, True)
    ran = desk.run("clients", "connect", "vscode", "--project", "--replace", "-o", "json")
    assert (ran.status, ran.json["moved"], ran.json["added"]) == (0, ["p"], [])
    assert '"p"' not in path.read_text()
    assert desk.run("clients", "disconnect", "vscode", "--project").status == 0
    assert path.read_text() == before


def test_replace_moves_the_servers_of_one_client(desk: Desk) -> None:
    desk.write("~/.cursor/mcp.json", CURSOR)
    zed = desk.write("~/.config/zed/settings.json", ZED)
    none = desk.run("clients", "connect", "zed", "--replace")
    assert (none.status, "comity init" in none.err, zed.read_text()) == (2, True, ZED)
    config = desk.write("comity.toml", "[[servers]]\nid = 'files'\ncommand = 'other'\n")
    ran = desk.run("clients", "connect", "zed", "--replace", "--yes")
    assert ran.status == 0, ran.err
    assert servers_of(config) == {
        "files": {"command": "other"},
        "files-2": {"command": "npx", "args": ["-y", "files"], **ANY_HOST},
    }
    assert '"files"' not in zed.read_text()
    assert '"extension"' in zed.read_text()
    # The user changes the file: the entry goes, the servers come back, the change stays.
    zed.write_text(zed.read_text().replace('"One"', '"Two"'))
    ran = desk.run("clients", "disconnect", "zed")
    assert "changed since" in ran.out
    assert "put back: files" in ran.out
    assert '"theme": "Two", // nice' in zed.read_text()
    assert desk.run("clients", "connect", "zed", "-o", "json").json["moved"] == []


def test_a_configuration_in_json_takes_servers_too(desk: Desk) -> None:
    config = desk.write("mcp.json", '{\n  "mcpServers": {}\n}\n')
    desk.write("~/.codex/config.toml", CODEX)
    assert desk.run("clients", "connect", "codex", "--replace", "--yes").status == 0
    assert json.loads(config.read_text()) == {"mcpServers": {"db": {"command": "db", **ANY_HOST}}}


def test_a_configuration_that_would_break_is_left_alone(desk: Desk) -> None:
    text = "servers = [{id = 'x', command = 'x'}]\n"
    config = desk.write("comity.toml", text)
    codex = desk.write("~/.codex/config.toml", CODEX)
    ran = desk.run("clients", "connect", "codex", "--replace")
    assert ran.status == 2
    assert (config.read_text(), codex.read_text()) == (text, CODEX)


def test_a_key_from_a_file_goes_into_the_entry_and_is_not_shown(desk: Desk) -> None:
    path = desk.write("~/.cursor/mcp.json", {"mcpServers": {}})
    path.chmod(0o644)
    desk.write("key", "cmt_canary\n")
    ran = desk.run("clients", "connect", "cursor", "--client-key-file", "key", "-o", "json")
    assert ran.status == 0, ran.err
    assert "canary" not in ran.out + ran.err
    entry = json.loads(path.read_text())["mcpServers"]["comity"]
    assert entry == {"url": HERE, "headers": {"Authorization": "Bearer cmt_canary"}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # The same again keeps the key; another gateway does not get it.
    assert desk.run("clients", "connect", "cursor", "-o", "json").json["changed"] is False
    assert desk.run("clients", "connect", "cursor", "--url", "http://127.0.0.1:9").status == 0
    assert "canary" not in path.read_text()
    assert "canary" not in desk.run("clients").out
    for wrong in (
        ("--client-key-file", "key", "--create-key"),
        ("--client-key-file", "key", "--project"),
        ("--client-key-file", "absent"),
        ("--principal", "agent:x"),
    ):
        assert desk.run("clients", "connect", "cursor", *wrong).status == 2


REQUIRED = f"""
[store]
url = "sqlite:///DB"

[identity]
mode = "required"

[[grants]]
subject = "person:boss"
verb = "*"
target = "*"
effect = "allow"

[[grants]]
subject = "agent:desk"
verb = "tools/call"
target = "example/echo"
effect = "allow"

[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = {EXAMPLE["args"]}
"""
GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


async def test_a_created_key_lets_the_client_in(desk: Desk) -> None:
    # A port of its own: a gateway of another test may have the usual one.
    written = f"port = {free_port()}\n" + REQUIRED.replace("DB", f"{desk.home}/comity.db")
    config = desk.write("comity.toml", written)
    unasked = desk.run("clients", "connect", "zed")
    assert "requires a key" in unasked.out
    away = desk.run("clients", "connect", "cursor", "--create-key")
    assert (away.status, "comity serve" in away.err) == (3, True)
    assert not (desk.home / ".cursor/mcp.json").exists()
    boss = desk.run("keys", "create", "person:boss", "--offline").lines[0]
    with comity(config, desk.env) as origin:
        ran = desk.run("clients", "connect", "cursor", "--create-key", COMITY_KEY=boss)
        assert ran.status == 0, ran.err
        entry = json.loads((desk.home / ".cursor/mcp.json").read_text())["mcpServers"]["comity"]
        assert entry["url"] == f"{origin}/mcp"
        key = entry["headers"]["Authorization"].removeprefix("Bearer ")
        assert key not in ran.out + ran.err
        assert await asyncio.to_thread(_status, entry["url"], {}) == 401
        assert await asyncio.to_thread(_status, entry["url"], entry["headers"]) == 200
        ran = desk.run(
            *("clients", "connect", "claude-desktop", "--create-key", "--principal", "agent:desk"),
            COMITY_KEY=boss,
        )
        assert ran.status == 0, ran.err
        file = desk.home / ".config/Claude/claude_desktop_config.json"
        started = json.loads(file.read_text())["mcpServers"]["comity"]
        assert set(started["env"]) == {"COMITY_KEY"}
        listed = desk.run("keys", "-o", "json", COMITY_KEY=boss).json["keys"]
        assert {each["principal"] for each in listed} == {
            "person:boss",
            "agent:cursor",
            "agent:desk",
        }
        server = StdioServerParameters(
            command=started["command"], args=started["args"], env={**desk.env, **started["env"]}
        )
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            async with asyncio.timeout(SECONDS):
                await session.initialize()
                tools = await session.list_tools()
        assert [tool.name for tool in tools.tools] == ["example__echo"]


def _status(url: str, headers: dict[str, str]) -> int:
    """The status of the first request that a client sends to this address."""
    accepted = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    request = urllib.request.Request(  # noqa: S310 - loopback only
        url, json.dumps(GREETING).encode(), {**accepted, **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:  # noqa: S310  # loopback
            return reply.status
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code
