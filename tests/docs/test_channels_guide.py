"""The pages about channels: their configuration is accepted, and is that of the examples."""

import tomllib
from pathlib import Path

from comity.config import load
from tests.docs.pages import ROOT, snippets_of

GUIDES = ROOT / "docs" / "guides"
CONNECTORS = ROOT / "examples" / "connectors"
_MODEL = {"MODEL_URL": "https://x.example.org/v1", "MODEL_KEY": "k"}
_MAIL = {"MAIL_ADDRESS": "a@example.org", "MAIL_PASSWORD": "p"}
_MAIL_AT = {"MAIL_IMAP": "imaps://x.example.org", "MAIL_SMTP": "smtps://x.example.org"}
_CHAT = {"CHAT_URL": "https://x.example.org", "CHAT_TOKEN": "t"}
GIVEN = {**_MODEL, **_MAIL, **_MAIL_AT, **_CHAT}


def test_the_page_of_channels_is_one_configuration(tmp_path: Path) -> None:
    texts = [each.text for each in snippets_of(GUIDES / "channels.md") if each.language == "toml"]
    path = tmp_path / "comity.toml"
    path.write_text("\n".join(texts), "utf-8")
    settings = load(path, {})
    assert len(settings.channel_rows) == 3
    live = settings.servers[0].live
    assert live["enabled"] == ("channels.publish", "channels.observe")


def test_the_configurations_of_the_connectors_are_accepted_and_shown(tmp_path: Path) -> None:
    page = GUIDES / "connect-a-chat.md"
    shown = [each.text for each in snippets_of(page) if each.language == "toml"]
    for text, name in zip(shown, ("mail.toml", "webhook_chat.toml"), strict=True):
        kept = (CONNECTORS / name).read_text("utf-8")
        assert text in kept
        assert tomllib.loads(kept).keys() - tomllib.loads(text).keys() <= {"store", "models"}
        path = tmp_path / name
        path.write_text(kept, "utf-8")
        assert load(path, GIVEN).channel_rows


def test_the_code_of_the_page_is_that_of_the_connector() -> None:
    (shown,) = [
        each.text for each in snippets_of(GUIDES / "connect-a-chat.md") if each.language == "python"
    ]
    kept = (CONNECTORS / "webhook_chat.py").read_text("utf-8")
    lines = {line.strip() for line in kept.splitlines()}
    assert [line for line in shown.splitlines() if line.strip() not in lines] == []
