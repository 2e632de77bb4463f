"""The store that an address names, and what is told where its packages are missing."""

import importlib
import sqlite3
import stat
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from comity.app.records import open_store
from comity.errors import Misconfigured
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant
from comity.storage import schema, sqlite, stores
from tests.support.inline_store import migrated_file

pytestmark = pytest.mark.integration


async def test_without_an_address_records_are_in_a_private_file_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    records = open_store("")
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240
    await records.open()
    await records.grants.put(Grant("agent:ci", CALL, "files/read", Effect.ALLOW))
    (folder,) = tmp_path.iterdir()  # noqa: ASYNC240
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
    await records.open()
    assert len(await records.grants.page()) == 1
    await records.close()
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240


async def test_a_temporary_store_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    records = open_store("")
    with pytest.raises(Misconfigured, match=r"no temporary store can be made in .*nowhere"):
        await records.open()
    await records.close()


async def test_a_temporary_store_has_the_tables_of_the_steps(tmp_path: Path) -> None:
    temporary = sqlite.TemporarySqliteBackend()
    temporary.prepare()
    made = _schema(temporary.path)
    await temporary.close()
    assert made == _schema(migrated_file())


def _schema(file: Path) -> dict[str, object]:
    """Every table and index with its columns, and what stands in the tables from the beginning."""
    with closing(sqlite3.connect(file)) as connection:
        names = connection.execute("SELECT name, type FROM sqlite_master WHERE type <> 'trigger'")
        found: dict[str, object] = {
            name: connection.execute(f"PRAGMA {kind}_info('{name}')").fetchall()
            for name, kind in names.fetchall()
        }
        for table in ("comity_version", "comity_schema"):
            found[f"rows of {table}"] = connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
    return found


@pytest.mark.parametrize("url", ["postgresql://h/d", "postgres://h/d"])
def test_a_missing_extra_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is imported here in vain becomes what its package holds: that is put back as well.
    for package, own in (("audit", "postgres_chain_writer"), ("storage", "postgres")):
        name = f"comity.{package}.{own}"
        module = importlib.import_module(name)
        monkeypatch.setattr(sys.modules[f"comity.{package}"], own, module)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(Misconfigured, match=r"pip install 'comity\[postgres\]'"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "a temporary file"),
        ("sqlite:////var/lib/comity.db", "SQLite, /var/lib/comity.db"),
        (
            "postgresql://u:s3cret@db.example.org:5432/comity?x=s3cret",
            "PostgreSQL, db.example.org/comity",
        ),
        ("postgresql:///comity", "PostgreSQL, localhost/comity"),
        ("postgresql://[s3cret", "PostgreSQL"),
    ],
)
def test_a_store_is_described_without_a_secret(url: str, told: str) -> None:
    assert stores.describe_store(url) == told


def test_the_file_of_a_store_is_known() -> None:
    assert stores.file_of("sqlite:////var/lib/comity.db") == Path("/var/lib/comity.db")
    assert stores.file_of("postgresql://h/d") is None


async def test_a_file_that_is_not_there_has_no_schema_and_is_not_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    assert await stores.current_schema(url) == "base"
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240
    await stores.upgrade_store(url)
    assert await stores.current_schema(url) == schema.newest_revision()
