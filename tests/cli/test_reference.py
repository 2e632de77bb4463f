"""The reference page says what the commands say."""

from tests.cli.reference import PAGE, page


def test_the_reference_of_the_commands_is_what_they_are() -> None:
    """Where it is not: .venv/bin/python -m tests.cli.reference"""
    assert PAGE.read_text(encoding="utf-8") == page()
