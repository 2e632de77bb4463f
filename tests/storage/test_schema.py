"""A store is brought up with what is in it; one of another version is told from ours."""

import asyncio
import shutil
import stat
from collections.abc import AsyncGenerator
from dataclasses import fields
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from comity.app.records import RecordStores, open_store
from comity.catalog.definitions import AcceptedTool, RegistrationRecord
from comity.errors import Misconfigured, Unavailable
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant, GrantSource
from comity.storage import postgres, schema, sqlite
from comity.storage.database import (
    GRANTS,
    KEYS,
    METADATA,
    PARTIES,
    PINS,
    REGISTRATIONS,
    SCHEMA_TABLE,
    DatabaseBackend,
)
from tests.contracts.stores import a_database

pytestmark = pytest.mark.integration

GRANT = Grant("agent:ci", CALL, "files/read", Effect.ALLOW, justification="é\N{GRINNING FACE}")
LATER = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    op.add_column("comity_grants", sa.Column("later", sa.Text))
"""


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    async with a_database() as address:
        yield address


@pytest.fixture
async def product(url: str) -> AsyncGenerator[DatabaseBackend]:
    made = (sqlite if url.startswith("sqlite") else postgres).product(url)
    yield made
    await made.close()


def records_at(url: str) -> RecordStores:
    return open_store(url)


@pytest.fixture
def later_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a later version of Comity ran, whose schema is one step further."""
    steps = tmp_path / "migrations"
    shutil.copytree(schema.STEPS, steps, ignore=shutil.ignore_patterns("__pycache__"))
    (steps / "versions" / "0002_later.py").write_text(LATER)
    monkeypatch.setattr(schema, "STEPS", steps)


async def test_a_store_keeps_what_is_in_it_on_the_way_up(
    url: str, product: DatabaseBackend, request: pytest.FixtureRequest
) -> None:
    assert await schema.current_revision(product.engine) == "base"
    await schema.upgrade_schema(product.engine)
    records = records_at(url)
    await records.open()
    (stored,) = await records.grants.put(GRANT)
    await records.parties.put(Principal("agent:ci"))
    version = (await records.changes.since(0)).version

    request.getfixturevalue("later_step")
    await schema.upgrade_schema(product.engine)
    assert await schema.current_revision(product.engine) == "0002" == schema.newest_revision()
    assert await records.grants.page() == [stored]
    assert await records.parties.page() == [Principal("agent:ci")]
    assert (await records.changes.since(0)).version == version
    await records.close()


async def test_the_steps_lead_to_exactly_the_tables(product: DatabaseBackend) -> None:
    await schema.upgrade_schema(product.engine)

    def differences(connection: Connection) -> list[object]:
        own = {"version_table": SCHEMA_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=own)
        return list(compare_metadata(context, METADATA))

    async with product.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


def test_the_steps_are_known_by_the_numbers_of_their_files() -> None:
    steps = ScriptDirectory(str(schema.STEPS))
    assert schema.newest_revision() == steps.get_current_head()
    assert all(schema.is_known(each.revision) for each in steps.walk_revisions())
    assert not schema.is_known("9999")


async def test_a_step_that_fails_leaves_nothing_behind(product: DatabaseBackend) -> None:
    async with product.engine.begin() as connection:
        await connection.execute(text("CREATE TABLE comity_api_keys (id TEXT)"))
    with pytest.raises(Unavailable):
        await schema.upgrade_schema(product.engine)
    assert await schema.current_revision(product.engine) == "base"
    assert await _tables(product) <= {"comity_api_keys", SCHEMA_TABLE}


async def test_two_that_upgrade_at_once_do_it_once(url: str) -> None:
    products = [(sqlite if url.startswith("sqlite") else postgres).product(url) for _ in range(4)]
    upgrades = (schema.upgrade_schema(each.engine) for each in products)
    await asyncio.wait_for(asyncio.gather(*upgrades), 30)
    assert await schema.current_revision(products[0].engine) == schema.newest_revision()
    for each in products:
        await each.close()


async def test_a_newer_store_is_refused_by_name(url: str, product: DatabaseBackend) -> None:
    await schema.upgrade_schema(product.engine)
    async with product.engine.begin() as connection:
        await connection.execute(text(f"UPDATE {SCHEMA_TABLE} SET version_num = '9999'"))  # noqa: S608
    records = records_at(url)
    with pytest.raises(Misconfigured, match="schema 9999, which a newer version of Comity made"):
        await records.open()
    await records.close()


async def test_an_older_file_is_brought_up_to_date_and_an_older_server_is_not(
    url: str, product: DatabaseBackend, request: pytest.FixtureRequest
) -> None:
    await schema.upgrade_schema(product.engine)
    request.getfixturevalue("later_step")
    records = records_at(url)
    if url.startswith("sqlite"):
        await records.open()
        assert await schema.current_revision(product.engine) == schema.newest_revision()
    else:
        with pytest.raises(Misconfigured, match=r"has schema 0001, .* run `comity db migrate`"):
            await records.open()
    await records.close()


async def test_an_empty_database_is_told_what_to_run() -> None:
    async with a_database() as url:
        records = open_store(url)
        with pytest.raises(Misconfigured, match="no tables yet; run `comity db migrate`"):
            await records.open()
        await records.close()


def test_a_record_has_a_column_for_each_of_its_fields() -> None:
    """Rows are read into records by position."""
    records = (
        (PARTIES, Principal),
        (KEYS, ApiKey),
        (PINS, AcceptedTool),
        (REGISTRATIONS, RegistrationRecord),
    )
    for table, record in records:
        assert [column.name for column in table.columns] == [each.name for each in fields(record)]
    kept = {each.name for each in fields(Grant)} - {"source"}
    assert {column.name for column in GRANTS.columns} == kept
    assert Grant("", "", "", Effect.DENY).source is GrantSource.RECORDS


async def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    records = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    await records.open()
    await records.grants.put(GRANT)
    assert _modes(tmp_path) == {0o600}
    await records.close()


def _modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:///:memory:", "sqlite:///a.db?mode=ro"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured, match="name a file for the store"):
        open_store(url)


async def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    records = open_store(f"sqlite:///{tmp_path / 'no' / 'such.db'}")
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
    records = open_store(url)
    with pytest.raises(Misconfigured, match=told) as refused:
        await records.open()
    assert "s3cret" not in str(refused.value)
    await records.close()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    records = open_store("postgresql://u:s3cret@127.0.0.1:1/x")
    with pytest.raises(Unavailable, match="the store does not answer") as refused:
        await records.open()
    assert "s3cret" not in str(refused.value)
    await records.close()


async def _tables(product: DatabaseBackend) -> set[str]:
    names = (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        if product.engine.dialect.name == "sqlite"
        else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    )
    async with product.engine.connect() as connection:
        return set((await connection.execute(text(names))).scalars())
