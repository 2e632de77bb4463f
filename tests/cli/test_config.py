"""`comity config`: what it shows, and the file that it is about."""

import pytest

from tests.cli.program import COMITY, Desk
from tests.interop.processes import free_port, running

CONFIG = """
[[models]]
id = "fast"
api = "openai"
url = "https://models.example.org/v1/private"

[[budgets]]
principal = "agent:*"
tokens_per_day = 1000

[[budgets]]
principal = "agent:ci"
tokens_per_day = 500
"""


def test_tables_of_the_configuration_are_shown_by_the_names_of_their_entries(desk: Desk) -> None:
    desk.write("comity.toml", CONFIG)
    shown = desk.run("config", "show")
    assert shown.status == 0, shown.err
    assert "models = fast" in shown.lines
    assert "Settings(" not in shown.out
    settings = desk.run("config", "show", "--all", "-o", "json").json["settings"]
    assert settings["models"] == ["fast"]
    assert len(settings["budgets"]) == 2
    assert "private" not in str(settings)


@pytest.mark.parametrize("command", ["check --no-connect", "show", "path", "trust --yes"])
def test_a_configuration_file_is_an_argument_or_an_option(desk: Desk, command: str) -> None:
    file = desk.write("here/own.json", {"mcpServers": {}})
    words = ("config", *command.split(), "-o", "json")
    by_argument, by_option = desk.run(*words, str(file)), desk.run(*words, "-c", str(file))
    assert (by_argument.status, by_argument.json) == (0, by_option.json), by_argument.err
    assert [str(file)] == by_argument.json["files"]
    both = desk.run(*words, str(file), "-c", str(file))
    assert (both.status, "Name the configuration file once" in both.err) == (2, True)


def test_serve_takes_the_file_as_an_argument(desk: Desk) -> None:
    file = desk.write("here/own.json", {"mcpServers": {}})
    with running([COMITY, "serve", str(file), "--port", "0"], desk.env) as program:
        program.wait_for_line(r"listening on http://\S+")


def test_problems_are_counted_in_plain_words(desk: Desk) -> None:
    away = f"127.0.0.1:{free_port()}"
    desk.write("comity.toml", f'[store]\nurl = "postgresql://{away}/x"\n')
    ran = desk.run("config", "check")
    assert (ran.status, ran.lines[-1]) == (1, "2 problems found."), "the store, and no pepper"
