"""The settings of workers, and the command line that asks for them."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from comity.app.checks.configuration import check_engines
from comity.app.commands import serve_command
from comity.app.processes.workers import WorkerOrders, worker_settings
from comity.app.settings import Settings, replace_settings
from comity.cluster.settings import ClusterSettings
from comity.storage.settings import StoreSettings


def orders(number: int) -> WorkerOrders:
    return WorkerOrders(
        number=number,
        config=None,
        options={},
        folder="/private",
        bus="nats://token@127.0.0.1:4222",
        token="",
        reports_start=False,
    )


def settings_of(number: int, settings: Settings) -> Settings:
    return replace_settings(settings, worker_settings(settings, orders(number)))


@pytest.fixture(autouse=True)
def no_pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMITY_PEPPER", raising=False)


def test_workers_without_a_store_share_temporary_files_and_the_local_bus() -> None:
    one, two = (settings_of(number, Settings()) for number in (1, 2))
    assert one.store == two.store == StoreSettings(url="sqlite:////private/store.db")
    assert one.identity.pepper_file == two.identity.pepper_file == "/private/store.db.pepper"
    assert one.cluster.url == two.cluster.url == "nats://token@127.0.0.1:4222"
    assert one.cluster.single_replica
    assert one.audit.retention == timedelta(hours=1)
    assert one.cluster.node.endswith("-1")
    assert two.cluster.node.endswith("-2")


def test_each_worker_has_a_chain_and_a_key_of_its_own() -> None:
    settings = replace_settings(
        Settings(), {"store.url": "sqlite:////data/comity.db", "audit.node": "east"}
    )
    one, two = (settings_of(number, settings).audit for number in (1, 2))
    # The first continues the chain of a gateway without workers.
    assert (one.node, one.key_file, one.retention) == ("east", "", timedelta(0))
    assert (two.node, two.key_file) == ("east-2", "/data/comity.db.audit-key-2")


def test_a_bus_of_the_configuration_and_its_times_stay_as_they_are() -> None:
    cluster = ClusterSettings(url="nats://nats.example.org", node="a" * 32)
    settings = replace_settings(Settings(cluster=cluster), {"identity.pepper_file": "/pepper"})
    two = settings_of(2, settings)
    assert two.cluster.url == "nats://nats.example.org"
    assert two.cluster.lease_ttl == cluster.lease_ttl
    # A node name has 32 characters at most, and the number must not be cut off.
    assert two.cluster.node == "a" * 28 + "-2"
    assert two.identity.pepper_file == "/pepper"


def test_workers_on_standard_input_and_output_are_refused() -> None:
    result = CliRunner().invoke(serve_command, ["--stdio", "--workers", "2"])
    assert result.exit_code == 2
    assert "--workers" in result.output


def test_a_worker_that_no_supervisor_started_is_refused() -> None:
    result = CliRunner().invoke(serve_command, ["--worker"], input="hello\n")
    assert "only `comity serve --workers` starts workers" in str(result.exception)


def test_check_tells_whether_the_program_of_the_bus_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = check_engines(Settings(workers=2), {})
    assert [each.verdict for each in found if each.about == "workers"] == ["ok"]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    (missing,) = [each for each in check_engines(Settings(workers=2), {}) if "worker" in each.about]
    assert missing.verdict == "problem"
    assert "comity[workers]" in missing.message
