"""Servers as clients wrote them down, said in Comity's words and brought together."""

from collections.abc import Mapping
from typing import Any

import pytest

from comity.cli.clients import BY_NAME
from comity.cli.importing import Imported, Surroundings, bring_together, is_comity, is_server

type Entry = Mapping[str, Any]

AROUND = Surroundings("/home/user/project", "/home/user", {"TOKEN": "t"})


def imported(client: str, entry: Entry, around: Surroundings = AROUND) -> Imported:
    (found,) = bring_together([(BY_NAME[client], "it", entry, around)])
    return found


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
    around = Surroundings("/home/user/project", "/home/user", {}, in_project=True)
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


@pytest.mark.parametrize(
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
        ({"command": "comity", "args": ["example"]}, False),
        ({"command": "serve", "args": [5, None]}, False),
        ({}, False),
    ],
)
def test_comity_is_known_when_it_is_met(entry: Entry, is_it: bool) -> None:
    assert is_comity(entry) == is_it
    found = bring_together([(BY_NAME["cursor"], "it", entry, AROUND)])
    assert bool(found) == (is_server(entry) and not is_it and entry.get("url") != 5)


@pytest.mark.parametrize("entry", [{}, {"settings": {}}, {"command": ""}, {"command": 5}])
def test_what_names_no_server_is_left_out(entry: Entry) -> None:
    assert bring_together([(BY_NAME["zed"], "it", entry, AROUND)]) == []
