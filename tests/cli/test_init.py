"""`comity init` in a home with clients' files, and in an empty one."""

import json
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Desk

FILES = {"command": "npx", "args": ["-y", "files", "/tmp"]}
GITHUB = {"command": "docker", "args": ["run", "gh"], "env": {"GITHUB_TOKEN": "canary-1"}}


def servers_of(path: Path) -> dict[str, Any]:
    return {each["id"]: each for each in tomllib.loads(path.read_text())["servers"]}


def test_the_servers_of_every_client_are_brought_together(desk: Desk) -> None:
    written = {
        "~/.config/Claude/claude_desktop_config.json": {"mcpServers": {"desktop": FILES}},
        "~/.claude.json": {
            "mcpServers": {"code": {"type": "http", "url": "https://example.org/code"}},
            "projects": {
                str(desk.folder): {"mcpServers": {"here": {"command": "x"}}},
                "/elsewhere": {"mcpServers": {"there": {"command": "y"}}},
            },
        },
        "~/.cursor/mcp.json": {"mcpServers": {"cursor": {"url": "https://example.org/cursor"}}},
        "~/.config/Code/User/mcp.json": {"servers": {"code-user": {"command": "z"}}},
        "~/.codeium/windsurf/mcp_config.json": {"mcpServers": {"surf": {"serverUrl": "http://s"}}},
        "~/.config/zed/settings.json": '// mine\n{"context_servers": {"zed": {"command": "q"},}}',
        "~/.gemini/settings.json": {"mcpServers": {"gem": {"httpUrl": "https://example.org/g"}}},
        "~/.codex/config.toml": '[mcp_servers.codex]\nurl = "https://example.org/codex"\n',
        "~/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/"
        "cline_mcp_settings.json": {"mcpServers": {"cline": {"command": "c"}}},
        "~/.lmstudio/mcp.json": {"mcpServers": {"lm": {"command": "l"}}},
        ".vscode/mcp.json": {"servers": {"project": {"command": "p"}}},
        ".mcp.json": {"mcpServers": {"shared": {"command": "s"}}},
    }
    for name, content in written.items():
        desk.write(name, content)
    ran = desk.run("init", "--json")
    assert (ran.status, ran.json["mistakes"]) == (0, None)
    assert {each["client"] for each in ran.json["found"]} == {
        *("claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "zed", "gemini"),
        *("codex", "cline", "lm-studio"),
    }
    assert set(servers_of(desk.folder / "comity.toml")) == {
        *("desktop", "code", "here", "cursor", "code-user", "surf", "zed", "gem", "codex"),
        *("cline", "lm", "project", "shared"),
    }


def test_secrets_are_carried_over_into_a_file_for_one_person(desk: Desk) -> None:
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"github": GITHUB}})
    ran = desk.run("init")
    target = desk.folder / "comity.toml"
    assert ran.status == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert servers_of(target)["github"]["env"] == {"GITHUB_TOKEN": "canary-1"}
    assert "as they are" in ran.out
    assert "canary" not in ran.out + ran.err


def test_what_is_written_is_a_configuration_that_comity_takes(desk: Desk) -> None:
    entry = {"command": "x", "env": {"A": "${input:a key}", "B": '${b c} "quoted" \\ \x7f'}}
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"an odd näme / 7": entry}})
    for form, name in (("toml", "comity.toml"), ("json", "mcp.json")):
        ran = desk.run("init", "--format", form, "--json")
        assert (ran.status, ran.json["mistakes"]) == (0, None)
        assert Path(ran.json["written"]) == desk.folder / name


def test_comity_itself_and_what_is_no_server_are_told_and_left_out(desk: Desk) -> None:
    ours = {"url": "http://127.0.0.1:2664/mcp"}
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"comity": ours, "files": FILES, "odd": {}}})
    ran = desk.run("init")
    assert "Comity itself is left out" in ran.out
    assert "without a program or an address: odd" in ran.out
    assert set(servers_of(desk.folder / "comity.toml")) == {"files"}


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_found(desk: Desk) -> None:
    desk.write("~/.claude.json", '{"mcpServers": "canary-1')
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"files": FILES}})
    ran = desk.run("init")
    assert (ran.status, "not JSON at line 1" in ran.out) == (0, True)
    assert "canary" not in ran.out
    assert set(servers_of(desk.folder / "comity.toml")) == {"files"}


def test_a_file_that_is_there_is_never_replaced_unasked(desk: Desk) -> None:
    target = desk.write("comity.toml", "# mine\n")
    ran = desk.run("init")
    assert (ran.status, ran.out, "--force" in ran.err) == (2, "", True)
    assert target.read_text() == "# mine\n"
    assert desk.run("init", "--force").status == 0
    assert target.read_text() != "# mine\n"
    assert (desk.folder / "comity.toml.comity-backup").read_text() == "# mine\n"


def test_one_file_alone_can_be_taken_in_whichever_form_it_is(desk: Desk) -> None:
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"files": FILES}})
    desk.write("theirs.json", {"context_servers": {"zed": {"command": "q"}}})
    desk.write("theirs.toml", '[mcp_servers.codex]\ncommand = "c"\n')
    for name, found in (("theirs.json", "zed"), ("theirs.toml", "codex")):
        assert desk.run("init", "--from", name, "--to", "out.toml", "--force").status == 0
        assert set(servers_of(desk.folder / "out.toml")) == {found}


@pytest.mark.parametrize("content", ["{}", "{", '{"mcpServers": {}}'])
def test_a_file_without_servers_is_the_operators_mistake(desk: Desk, content: str) -> None:
    desk.write("theirs.json", content)
    ran = desk.run("init", "--from", "theirs.json")
    assert (ran.status, "theirs.json" in ran.err) == (2, True)
    assert not (desk.folder / "comity.toml").exists()
    assert desk.run("init", "--from", "absent.json").status == 2


@pytest.mark.parametrize("form", ["toml", "json"])
def test_where_nothing_is_found_a_small_server_is_there_to_begin_with(
    desk: Desk, form: str
) -> None:
    ran = desk.run("init", "--format", form)
    assert (ran.status, "No MCP client" in ran.out) == (0, True)
    written = desk.folder / {"toml": "comity.toml", "json": "mcp.json"}[form]
    if form == "toml":
        assert set(servers_of(written)) == {"example"}
        assert tomllib.loads(written.read_text())["policy"] == {"approve_own": True}
        assert '# require_approval = "destructive"' in written.read_text()
        assert "# [[servers]]" in written.read_text()
    else:
        assert set(json.loads(written.read_text())["mcpServers"]) == {"example"}
