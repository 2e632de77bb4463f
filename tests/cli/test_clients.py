"""`comity clients` and `comity init`: files of MCP clients, written, restored and imported."""

import json
import stat
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from comity.clients.applications import BY_NAME, CLIENTS
from comity.clients.server_import import (
    ClientImportContext,
    ImportedServer,
    bring_together,
    is_comity,
    is_server,
)
from tests.cli.program import Desk
from tests.support.cases import loop_over

OTHER: dict[str, Any] = {"theme": "dark", "mcpServers": {"other": {"command": "x"}}}
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
    "copilot": (
        "~/.copilot/mcp-config.json",
        "mcpServers",
        {"type": "http", "url": HERE, "tools": ["*"]},
    ),
    "opencode": ("~/.config/opencode/opencode.json", "mcp", {"type": "remote", "url": HERE}),
    "roo": (
        "~/.config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        "mcpServers",
        {"type": "streamable-http", "url": HERE},
    ),
    "kiro": ("~/.kiro/settings/mcp.json", "mcpServers", {"url": HERE}),
    "amp": ("~/.config/amp/settings.json", "amp.mcpServers", {"url": HERE}),
}
STARTS_PROGRAMS = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "junie": ".junie/mcp/mcp.json",
}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with a state folder of its own, which the records of clients are kept in."""
    return Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "state"))


def records(desk: Desk) -> list[Path]:
    return [*Path(desk.env["COMITY_STATE_DIR"], "clients").glob("*")]


@pytest.mark.parametrize("client", WRITTEN)
def test_comity_is_written_in_the_clients_own_form_and_taken_out(desk: Desk, client: str) -> None:
    name, key, entry = WRITTEN[client]
    before = "// mine\n" + json.dumps({"theme": "dark", key: {"other": {"command": "x"}}}, indent=4)
    path = desk.write(name, before)
    path.chmod(0o640)
    assert desk.run("clients", "connect", client).status == 0
    after = path.read_text()
    assert after.startswith("// mine\n")
    found = json.loads(after.removeprefix("// mine\n"))
    assert found == {"theme": "dark", key: {"other": {"command": "x"}, "comity": entry}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    (record,) = records(desk)
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    ran = desk.run("clients", "disconnect", client)
    assert (ran.status, "exactly as it was" in ran.out) == (0, True)
    assert path.read_text() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert records(desk) == []


def test_every_client_is_tried(desk: Desk) -> None:
    others = {"codex", "goose", "continue"}
    assert {*WRITTEN, *STARTS_PROGRAMS, *others} == {client.name for client in CLIENTS}


def test_codex_keeps_its_comments(desk: Desk) -> None:
    before = '# mine\r\nmodel = "o5" # good\r\n'
    path = desk.write("~/.codex/config.toml", "")
    path.write_bytes(before.encode())
    assert desk.run("clients", "connect", "codex").status == 0
    assert path.read_bytes().startswith(before.encode())
    assert tomllib.loads(path.read_text())["mcp_servers"]["comity"] == {"url": HERE}
    assert desk.run("clients", "disconnect", "codex").status == 0
    assert path.read_bytes() == before.encode()


GOOSE = (
    "# mine\nGOOSE_MODEL: x\nextensions:\n  files:\n    type: stdio\n    cmd: npx\n    args: []\n"
)
CONTINUE = "name: mine # really\nversion: 1\nmcpServers:\n- name: files\n  command: npx\n"


@pytest.mark.parametrize(
    ("client", "name", "before"),
    [
        ("goose", "~/.config/goose/config.yaml", GOOSE),
        ("continue", "~/.continue/config.yaml", CONTINUE),
    ],
)
def test_a_yaml_file_keeps_the_rest(desk: Desk, client: str, name: str, before: str) -> None:
    path = desk.write(name, before)
    assert desk.run("clients", "connect", client).status == 0
    assert path.read_text().startswith(before)
    assert HERE in json.dumps(yaml.safe_load(path.read_text()))
    assert desk.run("clients", "list", "-o", "json").status == 0
    assert desk.run("clients", "disconnect", client).status == 0
    assert path.read_text() == before


def test_a_new_yaml_file_is_one_that_its_client_accepts(desk: Desk) -> None:
    assert desk.run("clients", "connect", "continue").status == 0
    path = desk.home / ".continue/config.yaml"
    found = yaml.safe_load(path.read_text())
    assert set(found) == {"name", "version", "schema", "mcpServers"}
    (server,) = found["mcpServers"]
    assert server == {"name": "comity", "type": "streamable-http", "url": HERE}
    assert desk.run("clients", "disconnect", "continue").status == 0
    assert not path.exists()
    assert desk.run("clients", "connect", "goose").status == 0
    goose = yaml.safe_load((desk.home / ".config/goose/config.yaml").read_text())
    assert goose["extensions"]["comity"] == {
        "enabled": True,
        "type": "streamable_http",
        "name": "comity",
        "description": "Comity gateway",
        "timeout": 300,
        "uri": HERE,
    }


def test_opencode_keeps_the_section_of_its_version(desk: Desk) -> None:
    path = desk.write("~/.config/opencode/opencode.jsonc", '{"mcp": {"servers": {}, }, }')
    assert desk.run("clients", "connect", "opencode").status == 0
    assert '"comity"' in path.read_text()
    assert not path.with_suffix(".json").exists()
    listed = desk.run("clients", "list", "-o", "json").json["clients"]
    (found,) = [each for each in listed if each["client"] == "opencode"]
    assert (found["servers"], found["comity"], found["file"]) == (1, HERE, str(path))
    ran = desk.run("clients", "connect", "opencode", "--stdio", "--config", "x.toml")
    assert ran.status == 2
    desk.write("x.toml", BEGUN)
    ran = desk.run("clients", "connect", "opencode", "--stdio", "--config", "x.toml", "-o", "json")
    assert ran.json["entry"]["type"] == "local"
    assert ran.json["entry"]["command"][1:] == [
        "serve",
        "--stdio",
        "-c",
        str(desk.folder / "x.toml"),
    ]


@pytest.mark.parametrize("client", STARTS_PROGRAMS)
def test_a_client_that_can_only_start_programs_starts_a_gateway(desk: Desk, client: str) -> None:
    path = desk.home / STARTS_PROGRAMS[client]
    ran = desk.run("clients", "connect", client)
    assert (ran.status, "comity init" in ran.err) == (2, True)
    config = desk.write("comity.toml", BEGUN)
    assert desk.run("clients", "connect", client).status == 0
    entry = json.loads(path.read_text())["mcpServers"]["comity"]
    assert entry["command"].startswith("/")
    assert entry["args"] == ["serve", "--stdio", "-c", str(config)]
    refused = desk.run("clients", "connect", client, "--url", HERE)
    assert (refused.status, "--url" in refused.err) == (2, True)


def test_any_client_can_start_a_gateway_of_its_own(desk: Desk) -> None:
    config = desk.write("mine.toml", BEGUN)
    assert desk.run("clients", "connect", "vscode", "--stdio", "-c", "mine.toml").status == 0
    path = desk.home / ".config/Code/User/mcp.json"
    entry = json.loads(path.read_text())["servers"]["comity"]
    assert (entry["type"], entry["args"][-1]) == ("stdio", str(config))
    both = desk.run("clients", "connect", "vscode", "--stdio", "--url", HERE)
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
    ran = desk.run("clients", "connect", "cursor", "--url", url, "-o", "json")
    assert ran.json["entry"] == {"url": written}
    assert desk.run("clients", "connect", "cursor", "--url", "ftp://x").status == 2


def test_what_stands_there_already_is_not_written_again(desk: Desk) -> None:
    path = desk.write("~/.cursor/mcp.json", OTHER)
    assert desk.run("clients", "connect", "cursor", "-o", "json").json["changed"] is True
    before = path.stat().st_ino
    assert desk.run("clients", "connect", "cursor", "-o", "json").json["changed"] is False
    assert path.stat().st_ino == before
    # Another address is a change, and the file before Comity is still known.
    assert desk.run("clients", "connect", "cursor", "--url", "http://localhost:1").status == 0
    assert desk.run("clients", "disconnect", "cursor").status == 0
    assert json.loads(path.read_text()) == OTHER


def test_a_file_that_changed_since_loses_our_entry_alone(desk: Desk) -> None:
    path = desk.write("~/.cursor/mcp.json", OTHER)
    desk.run("clients", "connect", "cursor")
    changed = json.loads(path.read_text())
    changed["mcpServers"]["more"] = {"command": "y"}
    path.write_text(json.dumps(changed))
    ran = desk.run("clients", "disconnect", "cursor")
    assert "only its entry was removed" in ran.out
    left = json.loads(path.read_text())
    assert left["mcpServers"] == {"other": {"command": "x"}, "more": {"command": "y"}}


def test_a_file_that_was_made_for_comity_goes_with_it(desk: Desk) -> None:
    assert desk.run("clients", "connect", "cursor").status == 0
    path = desk.home / ".cursor/mcp.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert desk.run("clients", "disconnect", "cursor").status == 0
    assert not path.exists()
    again = desk.run("clients", "disconnect", "cursor", "-o", "json")
    assert (again.status, again.json["changed"]) == (0, False)


@pytest.mark.parametrize(
    ("client", "name", "before"),
    [
        ("zed", "~/.config/zed/settings.json", '{"context_servers": "canary"}'),
        ("goose", "~/.config/goose/config.yaml", "extensions: {a: {cmd: canary}}\n"),
        ("codex", "~/.codex/config.toml", 'mcp_servers = {a = {command = "canary"}}\n'),
    ],
)
def test_a_form_that_is_not_understood_is_left_alone_and_the_entry_shown(
    desk: Desk, client: str, name: str, before: str
) -> None:
    path = desk.write(name, before)
    desk.write("key", "cmt_canary")
    ran = desk.run("clients", "connect", client, "--client-key-file", "key")
    assert (ran.status, path.read_text()) == (2, before)
    assert "by hand" in ran.err
    shown = ran.err[ran.err.index("\n\n") + 2 :]
    assert HERE in shown
    assert "Bearer [secret]" in shown
    assert "canary" not in ran.err
    assert records(desk) == []


def test_a_link_stays_one_and_leads_to_what_was_written(desk: Desk) -> None:
    real = desk.write("~/dotfiles/mcp.json", OTHER)
    (desk.home / ".cursor").mkdir()
    link = desk.home / ".cursor/mcp.json"
    link.symlink_to(real)
    assert desk.run("clients", "connect", "cursor").status == 0
    assert link.is_symlink()
    assert "comity" in json.loads(real.read_text())["mcpServers"]
    assert desk.run("clients", "disconnect", "cursor").status == 0
    assert (link.is_symlink(), json.loads(real.read_text())) == (True, OTHER)


def test_one_project_has_a_file_of_its_own(desk: Desk) -> None:
    assert desk.run("clients", "connect", "claude-code", "--project").status == 0
    entries = json.loads((desk.folder / ".mcp.json").read_text())["mcpServers"]
    assert entries == {"comity": {"type": "http", "url": HERE}}
    assert not (desk.home / ".claude.json").exists()
    none = desk.run("clients", "connect", "windsurf", "--project")
    assert (none.status, "--project" in none.err) == (2, True)


def test_clients_are_listed_with_what_they_have(desk: Desk) -> None:
    desk.write("~/.cursor/mcp.json", OTHER)
    desk.write("~/.lmstudio/mcp.json", "{")
    desk.run("clients", "connect", "cursor")
    assert desk.run("clients", "--check").status == 1, "one file cannot be read"
    ran = desk.run("clients")
    assert ran.status == 0
    rows = {line.split()[0]: line.split() for line in ran.lines[1:]}
    assert rows["cursor"] == ["cursor", "2", HERE, "~/.cursor/mcp.json"]
    assert rows["zed"][1:3] == ["-", "-"]
    assert rows["lm-studio"][1] == "?"
    told = {
        each["client"]: each for each in desk.run("clients", "list", "-o", "json").json["clients"]
    }
    assert (told["cursor"]["comity"], told["zed"]["exists"]) == (HERE, False)


def test_a_client_that_nobody_knows_is_the_operators_mistake(desk: Desk) -> None:
    ran = desk.run("clients", "connect", "cursr")
    assert (ran.status, "Did you mean 'cursor'?" in ran.err) == (2, True)


HOME = Path.home()
MAC = HOME / "Library/Application Support"


@loop_over(
    ("client", "platform", "environ", "path"),
    [
        ("claude-desktop", "darwin", {}, MAC / "Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", {}, HOME / ".config/Claude/claude_desktop_config.json"),
        (
            "claude-desktop",
            "linux",
            {"XDG_CONFIG_HOME": "/x"},
            "/x/Claude/claude_desktop_config.json",
        ),
        ("claude-desktop", "win32", {"APPDATA": "/a"}, "/a/Claude/claude_desktop_config.json"),
        ("vscode", "darwin", {}, MAC / "Code/User/mcp.json"),
        ("zed", "darwin", {}, HOME / ".config/zed/settings.json"),
        ("zed", "linux", {"XDG_CONFIG_HOME": "/x"}, "/x/zed/settings.json"),
        ("zed", "win32", {"APPDATA": "/a"}, "/a/Zed/settings.json"),
        ("cursor", "win32", {}, HOME / ".cursor/mcp.json"),
        ("codex", "linux", {"CODEX_HOME": "/c"}, "/c/config.toml"),
        ("codex", "darwin", {}, HOME / ".codex/config.toml"),
        ("claude-desktop", "freebsd", {}, None),
    ],
)
def test_a_client_is_looked_for_where_it_keeps_its_file(
    client: str, platform: str, environ: dict[str, str], path: Path | str | None
) -> None:
    found = BY_NAME[client].user_file(environ, platform)
    assert found == (Path(path) if path else None)


def test_no_two_clients_have_one_file() -> None:
    for platform in ("linux", "darwin", "win32"):
        paths = [client.user_file({}, platform) for client in CLIENTS]
        assert len(set(paths)) == len(CLIENTS)


type Entry = Mapping[str, Any]

AROUND = ClientImportContext("/home/user/project", "/home/user", {"TOKEN": "t"})


def imported(client: str, entry: Entry, around: ClientImportContext = AROUND) -> ImportedServer:
    (found,) = bring_together([(BY_NAME[client], "it", entry, around)])
    return found


@loop_over(
    ("client", "written", "said"),
    [
        ("cursor", {"url": "https://x/mcp"}, {"url": "https://x/mcp"}),
        ("gemini", {"url": "https://x/sse"}, {"url": "https://x/sse", "transport": "sse"}),
        ("gemini", {"httpUrl": "https://x/mcp", "trust": True}, {"url": "https://x/mcp"}),
        ("windsurf", {"serverUrl": "https://x/mcp"}, {"url": "https://x/mcp"}),
        ("cline", {"url": "https://x", "type": "streamableHttp"}, {"url": "https://x"}),
        ("cline", {"url": "https://x"}, {"url": "https://x", "transport": "sse"}),
        ("cline", {"command": "x", "alwaysAllow": ["y"]}, {"command": "x"}),
        ("zed", {"command": {"path": "x", "args": ["y"]}}, {"command": "x", "args": ["y"]}),
        ("zed", {"command": "x", "enabled": False}, {"command": "x", "disabled": True}),
        ("cursor", {"command": "x", "disabled": True}, {"command": "x", "disabled": True}),
        ("cursor", {"command": "x", "args": None, "env": {}}, {"command": "x"}),
        (
            "cursor",
            {"command": "x", "env": {"P": 3, "D": True, "N": None}},
            {"command": "x", "env": {"P": "3", "D": "true"}},
        ),
        (
            "codex",
            {"url": "https://x", "bearer_token_env_var": "TOKEN", "http_headers": {"A": "b"}},
            {"url": "https://x", "headers": {"A": "b", "Authorization": "Bearer ${TOKEN}"}},
        ),
        (
            "codex",
            {"command": "x", "env_vars": ["TOKEN"], "env": {"A": "b"}},
            {"command": "x", "env": {"TOKEN": "${TOKEN}", "A": "b"}},
        ),
    ],
)
def test_every_client_is_understood_in_its_own_form(
    client: str, written: Entry, said: Entry
) -> None:
    assert imported(client, written).entry == said


@loop_over(
    ("written", "said", "told"),
    [
        ("${TOKEN}", "${TOKEN}", ""),
        ("${env:TOKEN}", "${env:TOKEN}", ""),
        ("${env:MISSING}", "${MISSING:-}", "MISSING"),
        ("${MISSING:-x}", "${MISSING:-x}", ""),
        ("${input:api-key}", "${API_KEY:-}", "API_KEY"),
        ("${input:1st}", "${INPUT_1ST:-}", "INPUT_1ST"),
        ("${workspaceFolder}/x", "/home/user/project/x", ""),
        ("${userHome}", "/home/user", ""),
        ("a${not one}b", "a$${not one}b", ""),
        ("${", "$${", ""),
        ("$HOME $5", "$HOME $5", ""),
    ],
)
def test_a_variable_means_the_same_here_as_there(written: str, said: str, told: str) -> None:
    found = imported("vscode", {"command": "x", "args": [written]})
    assert found.entry["args"] == [said]
    assert [told in note for note in found.notes] == ([True] if told else [])


def test_a_project_is_where_its_servers_start() -> None:
    around = ClientImportContext("/home/user/project", "/home/user", {}, in_project=True)
    assert imported("vscode", {"command": "./x"}, around).entry["cwd"] == around.folder
    assert imported("vscode", {"command": "x", "cwd": "/y"}, around).entry["cwd"] == "/y"


def test_the_same_server_in_two_clients_is_one_and_told() -> None:
    entry = {"command": "npx", "args": ["x"]}
    found = bring_together(
        [
            (BY_NAME["cursor"], "files", entry, AROUND),
            (BY_NAME["zed"], "files", {**entry, "env": {}}, AROUND),
            (BY_NAME["codex"], "fs", entry, AROUND),
        ]
    )
    assert [(each.id, each.sources) for each in found] == [
        ("files", ["Cursor", "Zed", "Codex (as fs)"])
    ]


def test_two_servers_of_one_name_are_two() -> None:
    names = ["Files", "files", "files!", "FILES"]
    found = bring_together(
        (BY_NAME["cursor"], name, {"command": f"x{number}"}, AROUND)
        for number, name in enumerate(names)
    )
    assert [each.id for each in found] == ["Files", "files-2", "files-3", "FILES-4"]
    assert all(each.notes for each in found[1:])


@loop_over(
    ("entry", "is_it"),
    [
        ({"url": "http://127.0.0.1:2664/mcp"}, True),
        ({"serverUrl": "http://localhost:2664/servers/x/mcp"}, True),
        ({"url": "http://127.0.0.1:3000/mcp"}, False),
        ({"url": "https://example.org:2664/mcp"}, False),
        ({"url": "http://[bad"}, False),
        ({"url": 5}, False),
        ({"command": "comity", "args": ["serve", "--stdio", "x"]}, True),
        ({"command": "/usr/bin/comity", "args": ["serve"]}, True),
        ({"command": "C:\\bin\\comity.exe", "args": ["serve"]}, True),
        ({"command": "uvx", "args": ["comity", "serve", "--stdio"]}, True),
        ({"command": "python", "args": ["-m", "comity.cli", "serve"]}, True),
        ({"command": "comity", "args": ["dev", "example-server"]}, False),
        ({"command": "serve", "args": [5, None]}, False),
        ({}, False),
    ],
)
def test_comity_is_known_when_it_is_met(entry: Entry, is_it: bool) -> None:
    assert is_comity(entry) == is_it
    found = bring_together([(BY_NAME["cursor"], "it", entry, AROUND)])
    assert bool(found) == (is_server(entry) and not is_it and entry.get("url") != 5)


@loop_over("entry", [{}, {"settings": {}}, {"command": ""}, {"command": 5}])
def test_what_names_no_server_is_left_out(entry: Entry) -> None:
    assert bring_together([(BY_NAME["zed"], "it", entry, AROUND)]) == []


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
    ran = desk.run("init", "-o", "json")
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
    assert "values of variables and headers" in ran.out
    assert "canary" not in ran.out + ran.err


def test_what_is_written_is_a_configuration_that_comity_takes(desk: Desk) -> None:
    entry = {"command": "x", "env": {"A": "${input:a key}", "B": '${b c} "quoted" \\ \x7f'}}
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"an odd näme / 7": entry}})
    for form, name in (("toml", "comity.toml"), ("json", "mcp.json")):
        ran = desk.run("init", "--format", form, "-o", "json")
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
        assert servers_of(written)["example"]["command"] == sys.executable
        assert tomllib.loads(written.read_text())["policy"] == {
            "approve_own": True,
            "require_approval": "destructive",
        }
        assert "# [[servers]]" in written.read_text()
    else:
        assert set(json.loads(written.read_text())["mcpServers"]) == {"example"}
