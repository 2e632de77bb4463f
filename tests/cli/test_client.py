"""`comity client`: Comity put into a client's own file, and the file brought back."""

import json
import stat
import tomllib
from typing import Any

import pytest

from comity.cli.clients import CLIENTS
from tests.cli.program import Desk

OTHER: dict[str, Any] = {"theme": "dark", "mcpServers": {"other": {"command": "x"}}}
BACKUP = ".comity-backup"
HERE = "http://127.0.0.1:2664/mcp"
BEGUN = "[[servers]]\nid = 'x'\ncommand = 'x'\n"

WRITTEN: dict[str, tuple[str, str, Any]] = {
    "claude-code": ("~/.claude.json", "mcpServers", {"type": "http", "url": HERE}),
    "cursor": ("~/.cursor/mcp.json", "mcpServers", {"url": HERE}),
    "vscode": ("~/.config/Code/User/mcp.json", "servers", {"type": "http", "url": HERE}),
    "windsurf": ("~/.codeium/windsurf/mcp_config.json", "mcpServers", {"serverUrl": HERE}),
    "zed": ("~/.config/zed/settings.json", "context_servers", {"url": HERE}),
    "gemini": ("~/.gemini/settings.json", "mcpServers", {"httpUrl": HERE}),
    "cline": (
        "~/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        "mcpServers",
        {"type": "streamableHttp", "url": HERE},
    ),
    "lm-studio": ("~/.lmstudio/mcp.json", "mcpServers", {"url": HERE}),
}


@pytest.mark.parametrize("client", WRITTEN)
def test_comity_is_written_in_the_clients_own_form_and_taken_out(desk: Desk, client: str) -> None:
    name, key, entry = WRITTEN[client]
    before = json.dumps({"theme": "dark", key: {"other": {"command": "x"}}}, indent=4)
    path = desk.write(name, before)
    path.chmod(0o640)
    assert desk.run("client", "connect", client).status == 0
    after = json.loads(path.read_text())
    assert after == {"theme": "dark", key: {"other": {"command": "x"}, "comity": entry}}
    assert path.with_name(path.name + BACKUP).read_text() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert desk.run("client", "disconnect", client).status == 0
    assert path.read_text() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_every_client_is_tried(desk: Desk) -> None:
    assert {*WRITTEN, "claude-desktop", "codex"} == {client.name for client in CLIENTS}


def test_codex_keeps_its_comments(desk: Desk) -> None:
    before = '# mine\nmodel = "o5" # good\n'
    path = desk.write("~/.codex/config.toml", before)
    assert desk.run("client", "connect", "codex").status == 0
    assert path.read_text().startswith(before)
    assert tomllib.loads(path.read_text())["mcp_servers"]["comity"] == {"url": HERE}
    assert desk.run("client", "disconnect", "codex").status == 0
    assert path.read_text() == before


def test_a_client_that_can_only_start_programs_starts_a_gateway(desk: Desk) -> None:
    path = desk.home / ".config/Claude/claude_desktop_config.json"
    ran = desk.run("client", "connect", "claude-desktop")
    assert (ran.status, "comity init" in ran.err) == (2, True)
    config = desk.write("comity.toml", BEGUN)
    assert desk.run("client", "connect", "claude-desktop").status == 0
    entry = json.loads(path.read_text())["mcpServers"]["comity"]
    assert entry["command"].startswith("/")
    assert entry["args"] == ["serve", "--stdio", str(config)]
    refused = desk.run("client", "connect", "claude-desktop", "--url", HERE)
    assert (refused.status, "--url" in refused.err) == (2, True)


def test_any_client_can_start_a_gateway_of_its_own(desk: Desk) -> None:
    config = desk.write("mine.toml", BEGUN)
    assert desk.run("client", "connect", "vscode", "--stdio", "--config", "mine.toml").status == 0
    path = desk.home / ".config/Code/User/mcp.json"
    entry = json.loads(path.read_text())["servers"]["comity"]
    assert (entry["type"], entry["args"][-1]) == ("stdio", str(config))
    both = desk.run("client", "connect", "vscode", "--stdio", "--url", HERE)
    assert both.status == 2


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("http://127.0.0.1:3000", "http://127.0.0.1:3000/mcp"),
        ("127.0.0.1:3000/", "http://127.0.0.1:3000/mcp"),
        ("https://gw.example.org/servers/x/mcp", "https://gw.example.org/servers/x/mcp"),
    ],
)
def test_the_gateway_is_called_where_it_is_said_to_be(desk: Desk, url: str, written: str) -> None:
    ran = desk.run("client", "connect", "cursor", "--url", url, "--json")
    assert ran.json["entry"] == {"url": written}
    assert desk.run("client", "connect", "cursor", "--url", "ftp://x").status == 2


def test_what_stands_there_already_is_not_written_again(desk: Desk) -> None:
    path = desk.write("~/.cursor/mcp.json", OTHER)
    assert desk.run("client", "connect", "cursor", "--json").json["changed"] is True
    before = path.stat().st_ino
    assert desk.run("client", "connect", "cursor", "--json").json["changed"] is False
    assert path.stat().st_ino == before
    # Another address is a change, and the backup is still the file without Comity.
    assert desk.run("client", "connect", "cursor", "--url", "http://localhost:1").status == 0
    assert json.loads(path.with_name(path.name + BACKUP).read_text()) == OTHER


def test_a_file_that_changed_since_loses_our_entry_alone(desk: Desk) -> None:
    path = desk.write("~/.cursor/mcp.json", OTHER)
    desk.run("client", "connect", "cursor")
    changed = json.loads(path.read_text())
    changed["mcpServers"]["more"] = {"command": "y"}
    path.write_text(json.dumps(changed))
    ran = desk.run("client", "disconnect", "cursor")
    assert "the entry is gone" in ran.out
    left = json.loads(path.read_text())
    assert left["mcpServers"] == {"other": {"command": "x"}, "more": {"command": "y"}}


def test_a_file_that_was_made_for_comity_goes_with_it(desk: Desk) -> None:
    assert desk.run("client", "connect", "cursor").status == 0
    path = desk.home / ".cursor/mcp.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert desk.run("client", "disconnect", "cursor").status == 0
    assert not path.exists()
    again = desk.run("client", "disconnect", "cursor", "--json")
    assert (again.status, again.json["changed"]) == (0, False)


@pytest.mark.parametrize("client", ["vscode", "zed"])
def test_a_file_with_comments_is_left_alone_and_the_entry_shown(desk: Desk, client: str) -> None:
    name, key, entry = WRITTEN[client]
    before = f'// mine\n{{\n  "{key}": {{}}, // canary-1\n}}\n'
    path = desk.write(name, before)
    ran = desk.run("client", "connect", client)
    assert (ran.status, path.read_text()) == (2, before)
    assert "comments" in ran.err
    pasted = json.loads(ran.err[ran.err.index("{") :])
    assert pasted == {key: {"comity": entry}}
    assert "canary" not in ran.err


def test_a_link_stays_one_and_leads_to_what_was_written(desk: Desk) -> None:
    real = desk.write("~/dotfiles/mcp.json", OTHER)
    (desk.home / ".cursor").mkdir()
    link = desk.home / ".cursor/mcp.json"
    link.symlink_to(real)
    assert desk.run("client", "connect", "cursor").status == 0
    assert link.is_symlink()
    assert "comity" in json.loads(real.read_text())["mcpServers"]
    assert desk.run("client", "disconnect", "cursor").status == 0
    assert (link.is_symlink(), json.loads(real.read_text())) == (True, OTHER)


def test_one_project_has_a_file_of_its_own(desk: Desk) -> None:
    assert desk.run("client", "connect", "claude-code", "--project").status == 0
    entries = json.loads((desk.folder / ".mcp.json").read_text())["mcpServers"]
    assert entries == {"comity": {"type": "http", "url": HERE}}
    assert not (desk.home / ".claude.json").exists()
    none = desk.run("client", "connect", "windsurf", "--project")
    assert (none.status, "--project" in none.err) == (2, True)


def test_clients_are_listed_with_what_they_have(desk: Desk) -> None:
    desk.write("~/.cursor/mcp.json", OTHER)
    desk.write("~/.lmstudio/mcp.json", "{")
    desk.run("client", "connect", "cursor")
    ran = desk.run("client")
    assert ran.status == 1, "one file cannot be read"
    rows = {line.split()[0]: line.split() for line in ran.lines[1:]}
    assert rows["cursor"] == ["cursor", "2", HERE, "~/.cursor/mcp.json"]
    assert rows["zed"][1:3] == ["-", "-"]
    assert rows["lm-studio"][1] == "?"
    told = {each["client"]: each for each in desk.run("client", "list", "--json").json["clients"]}
    assert (told["cursor"]["comity"], told["zed"]["exists"]) == (HERE, False)


def test_a_client_that_nobody_knows_is_the_operators_mistake(desk: Desk) -> None:
    ran = desk.run("client", "connect", "cursr")
    assert (ran.status, "Did you mean 'cursor'?" in ran.err) == (2, True)
