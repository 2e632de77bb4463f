"""What may be registered, as an operator writes it; and what no operator writes by accident."""

from pathlib import Path

import pytest

from comity.wire.errors import Misconfigured
from tests.config.writing import from_text


def test_what_may_be_registered_is_read_word_by_word(tmp_path: Path) -> None:
    text = """
    [registration]
    commands = ["python", "uvx mcp-server-*"]
    folders = ["/srv/scripts", "~/scripts"]
    hosts = ["10.0.0.8", ".tools.example.org"]
    namespace = "made"
    lives = "deregistered"
    keep = true
    """
    found = from_text(tmp_path, text)
    assert found.registration_commands == ("python", "uvx mcp-server-*")
    assert found.registration_folders == ("/srv/scripts", "~/scripts")
    assert (found.registration_namespace, found.registration_lives) == ("made", "deregistered")
    assert found.registration_keep
    assert found.registration_confine


def test_without_a_word_nothing_may_be_registered(tmp_path: Path) -> None:
    found = from_text(tmp_path, "")
    assert found.registration_commands == ()
    assert not found.registration_from_network
    assert not found.registration_creating


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('commands = ["bash -c x"]', "bash"),
        ('commands = ["python ..."]', "every word"),
        ('commands = ["*"]', "name of a program"),
        ('commands = "python"', "commands"),
        ('folders = ["scripts"]', "a folder"),
        ('namespace = "My.Own"', "small letters"),
        ('lives = "for ever"', "session"),
        ("most = 0", "1"),
    ],
)
def test_what_would_open_too_much_is_told_at_the_start(
    tmp_path: Path, written: str, told: str
) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, f"[registration]\n{written}")
