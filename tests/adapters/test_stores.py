"""The store that an address names, and what is told where its packages are missing."""

import importlib
import sys
from pathlib import Path

import pytest

from comity import adapters
from comity.adapters import stores
from comity.adapters.memory.records import MemoryRecords
from comity.wire.errors import Misconfigured


def test_without_an_address_records_are_in_memory() -> None:
    assert isinstance(stores.open_store(""), MemoryRecords)
    assert stores.file_of("") is None


@pytest.mark.parametrize(
    ("url", "extra", "package"),
    [
        ("sqlite:///x.db", "sqlite", "aiosqlite"),
        ("postgresql://h/d", "postgres", "asyncpg"),
        ("postgres://h/d", "postgres", "sqlalchemy"),
    ],
)
def test_a_missing_extra_is_named(
    url: str, extra: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is imported here in vain becomes what its package holds: that is put back as well.
    monkeypatch.setattr(adapters, "sql", importlib.import_module("comity.adapters.sql"))
    for name in [name for name in sys.modules if name.startswith("comity.adapters.sql")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Without(package), *sys.meta_path])
    with pytest.raises(Misconfigured, match=rf"pip install 'comity\[{extra}\]'"):
        stores.open_store(url)


class _Without:
    """As if a package were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "memory"),
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
    assert stores.described(url) == told


def test_the_file_of_a_store_is_known() -> None:
    assert stores.file_of("sqlite:////var/lib/comity.db") == Path("/var/lib/comity.db")
    assert stores.file_of("postgresql://h/d") is None


async def test_a_file_that_is_not_there_has_no_schema_and_is_not_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    assert await stores.current(url) == "base"
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240
    await stores.upgrade(url)
    assert await stores.current(url) == stores.newest()
    await stores.downgrade(url, "base")
    assert await stores.current(url) == "base"
