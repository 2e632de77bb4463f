"""The members that the reference names are those that commands print."""

import re

import pytest

from tests.cli.program import EXAMPLE, Desk
from tests.cli.reference import PAGE

TABLE = PAGE.with_name("command-json.md").read_text(encoding="utf-8")
PLAIN = {
    found[1]: set(re.findall(r"`(\w+)`", found[2]))
    for found in re.finditer(r"^\| `(comity [a-z ]+)` \| ((?:`\w+` ?)+) \|$", TABLE, re.MULTILINE)
}


def test_the_table_has_the_commands_whose_documents_are_their_own() -> None:
    assert set(PLAIN) == {
        *("comity init", "comity check", "comity doctor", "comity client", "comity tools show"),
        *("comity client connect", "comity client disconnect", "comity store status"),
        "comity new server",
    }


@pytest.mark.parametrize("command", PLAIN)
def test_a_command_prints_the_members_that_the_reference_names(
    desk: Desk, gateway: str, command: str
) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"example": EXAMPLE}})
    named = {
        "comity tools show": ("example__echo", "--url", gateway),
        "comity client connect": ("cursor",),
        "comity client disconnect": ("cursor",),
        "comity new server": ("notes",),
    }
    words = command.split()[1:]
    ran = desk.run(*words, *named.get(command, ()), "--json")
    assert ran.status in (0, 1)
    assert set(ran.json) == PLAIN[command]


def test_each_part_of_a_document_has_the_members_that_the_reference_names(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"example": EXAMPLE}})
    initial = desk.run("init", "--json").json
    parts = {
        "found": initial["found"][0],
        "servers": initial["servers"][0],
        "clients": desk.run("client", "--json").json["clients"][0],
        "findings": desk.run("doctor", "--json").json["findings"][0],
        "checked": desk.run("check", "mcp.json", "--json").json["servers"][0],
        "mistakes": desk.run("check", "--json", COMITY_PORT="x").json["mistakes"][0],
    }
    prose = set(re.findall(r"`(\w+)`", TABLE.partition("`comity init`: ")[2]))
    for name, part in parts.items():
        assert set(part) <= prose, name
