"""Backup and restore: keys, grants, approval requests and a verifiable audit log survive both."""

import asyncio
import contextlib
import shutil
import stat
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from comity.app.offline import export_audit_lines
from comity.app.records import open_store
from comity.audit.commands import make_proof
from comity.errors import Misconfigured
from comity.storage.sqlite import back_up
from comity.storage.stores import upgrade_store
from tests.app.test_bootstrap import serving, written
from tests.cluster.postgres import a_postgres
from tests.support.bootstrap import PrintingGateway, call_tool, printing_gateway
from tests.support.fork_server import COMITY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SECONDS = 60.0


def is_open(store: str) -> bool:
    """Return whether an approval request is in the store."""

    async def found() -> bool:
        records = open_store(store)
        try:
            await records.open()
            return bool(await records.approval_requests.page())
        finally:
            await records.close()

    return asyncio.run(found())


def asking(gateway: PrintingGateway, key: str) -> threading.Thread:
    """A call that waits for a person until its gateway ends."""

    def call() -> None:
        with contextlib.suppress(OSError):
            call_tool(gateway.origin, "try__echo", key, message="may I?")

    thread = threading.Thread(target=call)
    thread.start()
    return thread


def wait_for_request(gateway: PrintingGateway, store: str) -> None:
    gateway.program.wait_until(lambda: is_open(store), SECONDS)


def lists_tools(gateway: PrintingGateway, key: str) -> bool:
    asked = urllib.request.Request(  # noqa: S310 - loopback only
        f"{gateway.origin}/tools", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:  # noqa: S310 - loopback only
        return b"try__echo" in answer.read()


def proved_entries(config: Path) -> int:
    """How many entries the audit log has, each of them signed and none of them altered."""
    verifier = make_proof([], [])
    for line in export_audit_lines(config):
        verifier.take(line)
    report = verifier.finish()
    assert report.is_whole, report.findings
    return report.signed


def test_a_sqlite_store_is_copied_while_it_is_used_and_restored_elsewhere(tmp_path: Path) -> None:
    first, copy, second = tmp_path / "first", tmp_path / "copy", tmp_path / "second"
    first.mkdir()
    config = asking_for_approval(first)
    with printing_gateway(serving(config), tmp_path / "out") as gateway:
        (key,) = gateway.keys
        call = asking(gateway, key)
        wait_for_request(gateway, f"sqlite:///{first}/comity.db")
        done = subprocess.run(
            [COMITY, "db", "backup", str(copy), "-c", str(config)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    call.join(SECONDS)
    assert {stat.S_IMODE(each.stat().st_mode) for each in copy.iterdir()} == {0o600}
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    shutil.rmtree(first)

    shutil.copytree(copy, second)
    config = asking_for_approval(second)
    with printing_gateway(serving(config), tmp_path / "again") as gateway:
        assert gateway.keys == []
        assert lists_tools(gateway, key)
        assert is_open(f"sqlite:///{second}/comity.db")
        assert "lost" not in gateway.program.said
    assert proved_entries(config) > 0


def asking_for_approval(folder: Path) -> Path:
    config = written(folder)
    config.write_text(config.read_text().replace('"never"', '"dangerous"'))
    return config


def test_a_restore_without_the_pepper_recognises_no_key(tmp_path: Path) -> None:
    config = written(tmp_path)
    with printing_gateway(serving(config), tmp_path / "out") as gateway:
        (key,) = gateway.keys
    (tmp_path / "comity.db.pepper").unlink()
    with printing_gateway(serving(config), tmp_path / "again") as gateway:
        assert call_tool(gateway.origin, "try__echo", key, message="x")[0] == 401


def test_only_a_sqlite_store_is_copied_and_only_into_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="pg_dump"):
        back_up("postgresql://db/comity", [], tmp_path / "copy")
    url = f"sqlite:///{tmp_path}/comity.db"
    with pytest.raises(Misconfigured, match="there is no store"):
        back_up(url, [], tmp_path / "copy")
    (tmp_path / "comity.db").touch()
    with pytest.raises(Misconfigured, match="cannot be created: File exists"):
        back_up(url, [], tmp_path)


def test_a_postgresql_store_is_restored_from_a_dump(tmp_path: Path) -> None:
    config = asking_for_approval(tmp_path)
    with a_postgres() as postgres:
        stored = {"COMITY_PEPPER": "pepper" * 8, "COMITY_STORE_URL": postgres.url}
        asyncio.run(upgrade_store(postgres.url))
        with printing_gateway(serving(config), tmp_path / "out", stored) as gateway:
            (key,) = gateway.keys
            call = asking(gateway, key)
            wait_for_request(gateway, postgres.url)
        call.join(SECONDS)
        dump = subprocess.run(
            ["pg_dump", "--format", "custom", postgres.url],
            capture_output=True,
            check=True,
            timeout=SECONDS,
        ).stdout
        place = postgres.url.rpartition("/")[0]
        created = ["psql", "-XAtqc", "CREATE DATABASE restored", postgres.url]
        subprocess.run(created, check=True, timeout=SECONDS)
        restore = ["pg_restore", "--exit-on-error", "--dbname", f"{place}/restored"]
        subprocess.run(restore, input=dump, check=True, timeout=SECONDS)
        stored["COMITY_STORE_URL"] = f"{place}/restored"
        with printing_gateway(serving(config), tmp_path / "again", stored) as gateway:
            assert gateway.keys == []
            assert lists_tools(gateway, key)
            assert is_open(f"{place}/restored")
            assert "lost" not in gateway.program.said
