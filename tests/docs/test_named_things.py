"""Pages name what the code has: settings, errors, packages, states and limits."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from comity.app.settings import TABLES
from comity.app.settings_reader import load_settings
from comity.approvals.model import TRANSITIONS
from comity.config.fields import fields_of
from comity.errors import Misconfigured
from comity.events import methods
from comity.events.model import MAX_CHANNELS, Severity
from comity.events.server_events import FLOOD
from comity.events.standard_channels import STANDARD
from comity.topics.rules import TopicViolation
from comity.topics.settings import TopicServiceSettings
from tests.docs import errors, settings, source_tree
from tests.docs.pages import ROOT, snippets_of
from tests.support.cases import loop_over

DOCS = ROOT / "docs"
HOW_TO = DOCS / "how-to"
CONNECTORS = ROOT / "examples" / "connectors"
CONNECTOR_VARIABLES = {
    "MODEL_URL": "https://x.example.org/v1",
    "MODEL_KEY": "k",
    "MAIL_ADDRESS": "a@example.org",
    "MAIL_PASSWORD": "p",
    "MAIL_IMAP": "imaps://x.example.org",
    "MAIL_SMTP": "smtps://x.example.org",
    "CHAT_URL": "https://x.example.org",
    "CHAT_TOKEN": "t",
}


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def snippets_in(page: str, language: str) -> list[str]:
    return [each.text for each in snippets_of(HOW_TO / page) if each.language == language]


def test_page_about_approvals_has_every_transition_and_no_other() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| `(\w+)` \|$", text_of("explanation/approvals.md"), re.MULTILINE
    )
    assert {(state, what): then for state, what, then in rows} == TRANSITIONS
    assert len(rows) == len(TRANSITIONS)


def test_page_about_events_names_every_channel_and_limit() -> None:
    text = text_of("how-to/subscribe-to-events.md")
    table = re.findall(r"^\| (`.*`) \|", text, flags=re.MULTILINE)
    assert {name for row in table for name in re.findall(r"`([\w.]+)`", row)} == set(STANDARD)
    words = " ".join(text.split())
    limits = f"at most {methods.MAX_PER_SESSION} subscriptions of {MAX_CHANNELS} channels"
    assert limits in words
    assert f"Up to {methods.MOST_WAITING} events wait" in words
    assert ", ".join(f"`{each}`" for each in Severity) in words
    assert f"More than {FLOOD.rate.count:,} events" in words
    # The page says one mebibyte, 10 seconds and a minute in words.
    assert (methods.MOST_BYTES, FLOOD.rate.period, FLOOD.pause.seconds) == (1024 * 1024, 10, 60)


def test_page_about_topics_names_settings_and_errors_that_exist() -> None:
    known = fields_of(TopicServiceSettings).keys()
    tables = [tomllib.loads(text) for text in snippets_in("join-a-topic.md", "toml")]
    assert {key for table in tables for key in table.get("topics", {})} - known == set()
    reference = text_of("reference/mcpx.md")
    assert [each for each in TopicViolation if f"| `{each}` |" not in reference] == []


MISTAKEN = """\
prot = 8080

[limits]
session_idle_timeout = "1h"
call_idle_timeout = "two minutes"

[[servers]]
id = "search"
headers = { Authorization = "Bearer ${SEARCH_TOKEN}" }
url = "https://search.example.org/mcp"
"""


def test_mistakes_are_reported_in_the_words_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comity.toml").write_text(MISTAKEN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured) as problem:
        load_settings(Path("comity.toml"), {})
    assert f"comity: {problem.value}\n" in text_of("reference/configuration-file.md")


def test_reference_of_settings_is_generated_from_their_declarations() -> None:
    assert settings.PAGE.read_text(encoding="utf-8") == settings.page()


@loop_over("table", [name for name in TABLES if name])
def test_example_in_the_reference_sets_something_in_its_table(table: str) -> None:
    notes = tomllib.loads(settings.NOTES.read_text(encoding="utf-8"))
    assert tomllib.loads(notes["tables"][table]["example"])[table]


def test_reference_of_errors_is_generated_from_the_faults() -> None:
    assert errors.PAGE.read_text(encoding="utf-8") == errors.page()


def test_page_about_channels_is_one_configuration(tmp_path: Path) -> None:
    path = tmp_path / "comity.toml"
    path.write_text("\n".join(snippets_in("connect-chat-and-mail.md", "toml")[2:]), "utf-8")
    loaded = load_settings(path, {})
    assert len(loaded.channels) == 3
    live = loaded.servers[0].live
    assert live["enabled"] == ("channels.publish", "channels.observe")


def test_configurations_and_code_of_the_connectors_are_shown(tmp_path: Path) -> None:
    shown = snippets_in("connect-chat-and-mail.md", "toml")[:2]
    for text, name in zip(shown, ("mail.toml", "webhook_chat.toml"), strict=True):
        kept = (CONNECTORS / name).read_text("utf-8")
        assert text in kept
        assert tomllib.loads(kept).keys() - tomllib.loads(text).keys() <= {"store", "models"}
        path = tmp_path / name
        path.write_text(kept, "utf-8")
        assert load_settings(path, CONNECTOR_VARIABLES).channels
    (code,) = snippets_in("connect-chat-and-mail.md", "python")
    nodes = ast.walk(ast.parse((CONNECTORS / "webhook_chat.py").read_text("utf-8")))
    statements = {ast.unparse(node) for node in nodes if isinstance(node, ast.stmt)}
    assert {ast.unparse(node) for node in ast.parse(code).body} <= statements


PAGE = text_of("contributing/source-tree.md")


def test_the_picture_is_drawn_from_the_contract() -> None:
    assert source_tree.PICTURE.read_text(encoding="utf-8") == source_tree.draw()


def test_every_package_has_its_line() -> None:
    named = set(
        re.findall(r"^\| `(\w+)(?:/|\.py)` \|", PAGE.partition("## Inside")[0], re.MULTILINE)
    )
    assert named == {name for layer in source_tree.layers() for name in layer}


def test_each_question_is_answered_by_at_most_two_files() -> None:
    table = PAGE.partition("## Where do I change")[2]
    rows = re.findall(r"^\| (?!---|question)(.+?) \| (.+?) \|$", table, re.MULTILINE)
    assert len(rows) >= 20
    for question, answer in rows:
        files = re.findall(r"`([\w./-]+)`", answer)
        assert 1 <= len(files) <= 2, question
        for file in files:
            assert (ROOT / "src" / "comity" / file).exists() or (ROOT / file).exists(), file
