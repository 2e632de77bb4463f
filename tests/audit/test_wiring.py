"""The journal as the settings say: signed, without secrets, and kept through an end."""

from datetime import timedelta
from pathlib import Path

import pytest

from comity.app.settings import ServerSettings, Settings
from comity.audit.chain import signed_part
from comity.audit.events import AuditEvent, AuditType, event_of
from comity.audit.settings import AuditSettings
from comity.audit.signing import is_valid_signature
from comity.audit.verify import name_of
from comity.audit.wiring import known_secrets, make_signer, node_of, open_audit_log
from comity.identity.wiring import open_policy_snapshot
from comity.live.pushes.model import InboundWebhookConfig, PushRoute, PushTarget, WebhookKind
from comity.storage.settings import StoreSettings
from tests.support.settings import settings_with

PEPPER = b"p" * 32


def settings_for(folder: Path, **more: object) -> Settings:
    return settings_with(store_url=f"sqlite:///{folder}/c.db", **more)


async def test_a_journal_on_disk_is_signed_and_goes_on_after_an_end(tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    settings = settings_for(tmp_path, audit_checkpoint_mirror=str(outside))
    for _ in range(2):
        async with (
            open_policy_snapshot(settings) as snapshot,
            open_audit_log(settings, snapshot, PEPPER) as journaling,
        ):
            journal = journaling.audit_log
            await journal.write(AuditEvent(AuditType.TOOL_EXECUTED, "agent:a", journal.clock()))
            assert journaling.redact({"password": "hunter2hunter2"}) != "hunter2hunter2"
    signer = make_signer(settings)
    assert signer is not None
    node = node_of(settings, signer)
    assert node == name_of(signer.key)
    async with open_policy_snapshot(settings) as snapshot:
        store = snapshot.records.audit_log
        lines = await store.page(node)
        (*_, last) = await store.checkpoints(node)
    assert [event_of(line.body).type for line in lines] == [
        *(AuditType.AUDIT_LOG_OPENED, AuditType.TOOL_EXECUTED, AuditType.AUDIT_LOG_CLOSED) * 2
    ]
    assert last.seq == len(lines)
    assert is_valid_signature(signer.key, signed_part(last._replace(signature=b"")), last.signature)
    assert len(outside.read_text().splitlines()) >= 2


async def test_without_a_store_nobody_signs_and_the_machine_gives_the_name() -> None:
    settings = Settings(audit=AuditSettings(retention=timedelta(days=1)))
    assert make_signer(settings) is None
    assert node_of(settings, None)
    assert node_of(Settings(audit=AuditSettings(node="web-1")), None) == "web-1"
    async with (
        open_policy_snapshot(settings) as snapshot,
        open_audit_log(settings, snapshot, PEPPER) as journaling,
    ):
        await journaling.audit_log.flush()


def test_a_log_in_postgresql_is_signed_with_a_key_that_is_made_at_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COMITY_STATE_DIR", str(tmp_path / "state"))
    settings = Settings(store=StoreSettings(url="postgresql://host/db"))
    first = make_signer(settings)
    assert first is not None
    file = tmp_path / "state" / "audit-log.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(said in caplog.text for said in (str(file), first.key, "If it is lost"))
    caplog.clear()
    again = make_signer(settings)
    assert again is not None
    assert (again.key, caplog.text) == (first.key, "")


def test_secrets_of_webhooks_that_come_in_count_as_known(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("the-newer-secret\nthe-older-secret\n", "utf-8")
    rows = [
        InboundWebhookConfig(name, WebhookKind.GITHUB, str(path), PushRoute(PushTarget.NOTHING))
        for name, path in (("a", file), ("b", tmp_path / "missing"))
    ]
    known = set(known_secrets(Settings(inbound_webhooks=tuple(rows)), PEPPER))
    assert {"the-newer-secret", "the-older-secret"} <= known


def test_what_the_gateway_was_given_counts_as_known_secrets() -> None:
    server = ServerSettings(
        "a",
        "a",
        "http",
        url="https://user:urlpassword@host/mcp",
        headers={"Authorization": "Bearer header-secret", "X-Colour": "green"},
        env={"API_KEY": "key-secret", "MODE": "production", "BLOB": "x" * 30},
    )
    settings = Settings(
        servers=(server,), store=StoreSettings(url="postgresql://u:storepassword@host/db")
    )
    known = set(known_secrets(settings, PEPPER))
    wanted = {"urlpassword", "header-secret", "key-secret", "x" * 30, "storepassword"}
    assert wanted <= known
    assert not known & {"green", "production"}
