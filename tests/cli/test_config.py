"""`comity config show`."""

from tests.cli.program import Desk

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
