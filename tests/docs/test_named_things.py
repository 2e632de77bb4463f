"""Pages name what the code has: settings, metrics, errors, packages, states and limits."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from comity.app.settings_reader import load_settings
from comity.approvals.model import TRANSITIONS
from comity.audit.events import OURS, AuditType
from comity.config.fields import fields_of
from comity.errors import Misconfigured
from comity.events import audit_feed, methods
from comity.events.model import MAX_CHANNELS, Severity
from comity.events.server_events import FLOOD
from comity.events.standard_channels import STANDARD
from comity.topics.rules import TopicViolation
from comity.topics.settings import TopicServiceSettings
from tests.docs import errors, source_tree
from tests.docs.pages import ROOT, snippets_of
from tests.support.visitor import visiting

DOCS = ROOT / "docs"
GUIDES = DOCS / "guides"
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


def snippets_in(guide: str, language: str) -> list[str]:
    return [each.text for each in snippets_of(GUIDES / guide) if each.language == language]


def test_page_about_approvals_has_every_transition_and_no_other() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| `(\w+)` \|$", text_of("concepts/ask.md"), re.MULTILINE
    )
    assert {(state, what): then for state, what, then in rows} == TRANSITIONS
    assert len(rows) == len(TRANSITIONS)


def test_guide_to_audit_events_names_every_type_and_limit() -> None:
    text = text_of("guides/audit-events.md")
    named = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", text))
    named |= {f"PERMISSION{each}" for each in re.findall(r"`…(_[A-Z]+)`", text)}
    named |= {OURS + each for each in re.findall(r"`(?:…|dev\.comity\.)([a-z_]+)`", text)}
    own = {AuditType.JOURNAL_OPENED, AuditType.JOURNAL_CLOSED, AuditType.SEGMENT_SEALED}
    assert set(AuditType) - own <= named
    assert f"Up to {audit_feed.MOST_WAITING} notices" in text
    # The page says one mebibyte, a thousand and 16 KiB in words.
    limits = (audit_feed.MOST_BYTES, audit_feed.MAX_QUEUED, audit_feed.MAX_REPORT_BYTES)
    assert limits == (1024 * 1024, 1000, 16 * 1024)
    assert {audit_feed.MISSED, audit_feed.CLAIMED} <= set(re.findall(r"`([\w./]+)`", text))


def test_guide_to_events_names_every_channel_and_limit() -> None:
    text = text_of("guides/events.md")
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


def test_guide_to_topics_names_settings_and_errors_that_exist() -> None:
    known = fields_of(TopicServiceSettings).keys()
    tables = [tomllib.loads(text) for text in snippets_in("topics.md", "toml")]
    assert {key for table in tables for key in table.get("topics", {})} - known == set()
    reference = text_of("reference/topics.md")
    assert [each for each in TopicViolation if f"| `{each}` |" not in reference] == []


MISTAKEN = """\
prot = 8080

[limits]
idle_session = "1h"
call_deadline = "two minutes"

[[servers]]
id = "search"
headers = { Authorization = "Bearer ${SEARCH_TOKEN}" }
url = "https://search.example.org/mcp"
"""


def test_mistakes_are_reported_in_the_words_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comity.toml").write_text(MISTAKEN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured) as problem:
        load_settings(Path("comity.toml"), {})
    assert f"comity: {problem.value}\n" in text_of("guides/configuration.md")


def test_reference_of_errors_is_generated_from_the_faults() -> None:
    assert errors.PAGE.read_text(encoding="utf-8") == errors.page()


async def test_every_metric_is_on_the_page_and_follows_the_conventions() -> None:
    async with visiting() as visitor:
        text = (await (await visitor.send("GET", path="/metrics")).body()).decode()
    list(text_string_to_metric_families(text))
    metrics = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    page = text_of("operate/observe.md")
    rows = dict(re.findall(r"^\| `(comity_\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert rows == {name: kind for name, kind in metrics.items() if name.startswith("comity_")}
    assert metrics.keys() == set(re.findall(r"`((?:comity|process)_\w+)`", page))
    for name, kind in metrics.items():
        assert re.fullmatch(r"(comity|process)_[a-z_]+[a-z]", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert kind not in ("histogram", "summary") or name.endswith("_seconds"), name


def test_page_about_channels_is_one_configuration(tmp_path: Path) -> None:
    path = tmp_path / "comity.toml"
    path.write_text("\n".join(snippets_in("channels.md", "toml")), "utf-8")
    settings = load_settings(path, {})
    assert len(settings.channels) == 3
    live = settings.servers[0].live
    assert live["enabled"] == ("channels.publish", "channels.observe")


def test_configurations_and_code_of_the_connectors_are_shown(tmp_path: Path) -> None:
    shown = snippets_in("connect-a-chat.md", "toml")
    for text, name in zip(shown, ("mail.toml", "webhook_chat.toml"), strict=True):
        kept = (CONNECTORS / name).read_text("utf-8")
        assert text in kept
        assert tomllib.loads(kept).keys() - tomllib.loads(text).keys() <= {"store", "models"}
        path = tmp_path / name
        path.write_text(kept, "utf-8")
        assert load_settings(path, CONNECTOR_VARIABLES).channels
    (code,) = snippets_in("connect-a-chat.md", "python")
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
