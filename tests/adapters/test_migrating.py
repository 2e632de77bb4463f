"""A store is brought up and back with what is in it; one of another version is told from ours."""

import asyncio
import stat
from collections.abc import AsyncGenerator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text

from comity.adapters.sql import migrating, postgres, sqlite
from comity.adapters.sql.database import Product
from comity.adapters.sql.tables import (
    GRANTS,
    KEYS,
    METADATA,
    PARTIES,
    PINS,
    REGISTRATIONS,
    SCHEMA_TABLE,
)
from comity.rules import keeping
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.grants import CALL, Effect, Grant, Source
from comity.wire.parties import Key, Party
from comity.wire.pins import Pin, Registration
from tests.contracts.stores import a_database

GRANT = Grant("agent:ci", CALL, "files/read", Effect.ALLOW, justification="é\N{GRINNING FACE}")


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    async with a_database() as address:
        yield address


@pytest.fixture
async def product(url: str) -> AsyncGenerator[Product]:
    made = (sqlite if url.startswith("sqlite") else postgres).product(url)
    yield made
    await made.close()


def records_at(url: str) -> sqlite.SqlRecords:
    return (sqlite if url.startswith("sqlite") else postgres).open_records(url)


async def test_a_store_keeps_what_is_in_it_on_the_way_up_and_back(
    url: str, product: Product
) -> None:
    assert await migrating.current(product.engine) == "base"
    await migrating.upgrade(product.engine, "0001")
    records = records_at(url)
    stored = keeping.grant(GRANT)
    await _put_as_it_was(product, stored)
    await records.parties.put(Party("agent:ci"))

    await migrating.upgrade(product.engine)
    assert await migrating.current(product.engine) == migrating.newest()
    await records.open()
    assert await records.grants.page() == [stored]
    await records.pins.put(Pin("files", "read", "d", b"{}"))
    await records.grants.put(replace(GRANT, where={"paths": {}, "only": []}))
    version = (await records.changes.since(0)).version

    await migrating.downgrade(product.engine, "0001")
    assert await migrating.current(product.engine) == "0001"
    # Without its condition the other one would allow everything: it is gone.
    assert await _ids_of_grants(product) == [stored.id]
    assert await records.parties.page() == [Party("agent:ci")]
    assert (await records.changes.since(0)).version == version
    await records.close()

    await migrating.downgrade(product.engine, "base")
    assert await _tables(product) <= {SCHEMA_TABLE}


async def test_the_steps_lead_to_exactly_the_tables(product: Product) -> None:
    await migrating.upgrade(product.engine)

    def differences(connection: Connection) -> list[object]:
        own = {"version_table": SCHEMA_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=own)
        return list(compare_metadata(context, METADATA))

    async with product.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_step_that_fails_leaves_nothing_behind(product: Product) -> None:
    async with product.engine.begin() as connection:
        await connection.execute(text("CREATE TABLE comity_keys (id TEXT)"))
    with pytest.raises(Unavailable):
        await migrating.upgrade(product.engine)
    assert await migrating.current(product.engine) == "base"
    assert await _tables(product) <= {"comity_keys", SCHEMA_TABLE}


async def test_two_that_upgrade_at_once_do_it_once(url: str) -> None:
    products = [(sqlite if url.startswith("sqlite") else postgres).product(url) for _ in range(4)]
    upgrades = (migrating.upgrade(each.engine) for each in products)
    await asyncio.wait_for(asyncio.gather(*upgrades), 30)
    assert await migrating.current(products[0].engine) == migrating.newest()
    for each in products:
        await each.close()


async def test_a_newer_store_is_refused_by_name(url: str, product: Product) -> None:
    await migrating.upgrade(product.engine)
    async with product.engine.begin() as connection:
        await connection.execute(text(f"UPDATE {SCHEMA_TABLE} SET version_num = '9999'"))  # noqa: S608
    records = records_at(url)
    with pytest.raises(Misconfigured, match="schema 9999, which a newer version of Comity made"):
        await records.open()
    await records.close()


async def test_an_older_file_is_brought_up_to_date_and_an_older_server_is_not(
    url: str, product: Product
) -> None:
    await migrating.upgrade(product.engine, "0001")
    records = records_at(url)
    if url.startswith("sqlite"):
        await records.open()
        assert await migrating.current(product.engine) == migrating.newest()
    else:
        with pytest.raises(Misconfigured, match=r"has schema 0001, .* run `comity store upgrade`"):
            await records.open()
    await records.close()


async def test_an_empty_database_is_told_what_to_run() -> None:
    async with a_database() as url:
        records = postgres.open_records(url)
        with pytest.raises(Misconfigured, match="no tables yet; run `comity store upgrade`"):
            await records.open()
        await records.close()


def test_a_record_has_a_column_for_each_of_its_fields() -> None:
    """Rows are read into records by position."""
    records = ((PARTIES, Party), (KEYS, Key), (PINS, Pin), (REGISTRATIONS, Registration))
    for table, record in records:
        assert [column.name for column in table.columns] == [each.name for each in fields(record)]
    kept = {each.name for each in fields(Grant)} - {"source"}
    assert {column.name for column in GRANTS.columns} == kept
    assert Grant("", "", "", Effect.DENY).source is Source.RECORDS


async def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    records = sqlite.open_records(f"sqlite:///{tmp_path / 'store.db'}")
    await records.open()
    await records.grants.put(GRANT)
    assert _modes(tmp_path) == {0o600}
    await records.close()


def _modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:///:memory:", "sqlite:///a.db?mode=ro"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured, match="name a file for the store"):
        sqlite.open_records(url)


async def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    records = sqlite.open_records(f"sqlite:///{tmp_path / 'no' / 'such.db'}")
    with pytest.raises(Misconfigured, match=r"such\.db cannot be written: No such file"):
        await records.open()
    await records.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://u:s3cret@127.0.0.1:port/x", "cannot be read; write postgresql://"),
        ("postgresql://u:s3cret@127.0.0.1/x?sslmode=maybe", "cannot be read; write postgresql://"),
        ("postgresql://postgres:s3cret@127.0.0.1/no_such_database", "refuses to be used: database"),
    ],
)
async def test_an_address_that_cannot_be_used_is_told_without_its_password(
    url: str, told: str
) -> None:
    records = postgres.open_records(url)
    with pytest.raises(Misconfigured, match=told) as refused:
        await records.open()
    assert "s3cret" not in str(refused.value)
    await records.close()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    records = postgres.open_records("postgresql://u:s3cret@127.0.0.1:1/x")
    with pytest.raises(Unavailable, match="the store does not answer") as refused:
        await records.open()
    assert "s3cret" not in str(refused.value)
    await records.close()


async def _put_as_it_was(product: Product, grant: Grant) -> None:
    """As the first version of the store kept it."""
    names = ("id", "subject", "verb", "target", "effect", "granted_by", "justification")
    values = ", ".join(f":{name}" for name in names)
    async with product.engine.begin() as connection:
        await connection.execute(
            text(f"INSERT INTO comity_grants ({', '.join(names)}) VALUES ({values})"),  # noqa: S608
            {name: str(getattr(grant, name)) for name in names},
        )


async def _ids_of_grants(product: Product) -> list[str]:
    async with product.engine.connect() as connection:
        return list((await connection.execute(text("SELECT id FROM comity_grants"))).scalars())


async def _tables(product: Product) -> set[str]:
    names = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if product.engine.dialect.name == "sqlite"
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    async with product.engine.connect() as connection:
        return set((await connection.execute(text(names))).scalars())
