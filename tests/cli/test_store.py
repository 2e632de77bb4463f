"""`comity db` with a file and a real database; and `serve` with a store it cannot use."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from comity.storage import stores
from tests.cli.program import Desk
from tests.contracts.stores import a_database, run_on

MEMORY = 'port = 0\n[[servers]]\nid = "a"\ncommand = "true"\n'
NEWER = "UPDATE comity_schema SET version_num = '9999'"


@pytest.fixture
async def database() -> AsyncGenerator[str]:
    async with a_database() as url:
        yield url


def test_without_a_store_nothing_is_kept_and_that_is_told(desk: Desk) -> None:
    desk.write("comity.toml", MEMORY)
    ran = desk.run("db", "status")
    assert (ran.status, ran.err) == (0, "")
    assert "There is no database" in ran.out
    upgraded = desk.run("db", "migrate")
    assert upgraded.status == 2
    assert "name a database first" in upgraded.err


def test_a_file_is_made_and_brought_up_to_date(desk: Desk) -> None:
    desk.write("comity.toml", f'{MEMORY}[store]\nurl = "sqlite:///here.db"\n')
    before = desk.run("db", "status", "-o", "json")
    assert (before.status, before.json["schema"]) == (0, "base")
    assert desk.run("db", "status", "--check").status == 1
    planned = desk.run("db", "migrate", "--dry-run")
    assert (planned.status, "would migrate from no tables" in planned.out) == (0, True)
    assert "SQLite, here.db: migrated from no tables to schema" in desk.run("db", "migrate").out
    after = desk.run("db", "status")
    assert after.status == 0
    assert "up to date" in after.out
    assert "is up to date" in desk.run("db", "migrate").out


async def test_a_database_is_brought_up_to_date_and_no_password_is_shown(
    desk: Desk, database: str
) -> None:
    url = database.replace("postgres@", "postgres:s3cret@")
    desk.write("comity.toml", MEMORY)
    named = {"COMITY_STORE_URL": url}
    before = desk.run("db", "status", **named)
    assert before.status == 0
    assert "no tables" in before.out
    ran = desk.run("db", "migrate", **named)
    assert (ran.status, ran.err) == (0, "")
    after = desk.run("db", "status", "-o", "json", **named)
    assert after.json["schema"] == after.json["newest"]
    assert "s3cret" not in before.out + ran.out + after.out
    await run_on(database, NEWER)
    newer = desk.run("db", "status", "--check", "-o", "json", **named)
    assert (newer.status, newer.json["schema"]) == (1, "9999")


async def test_serve_refuses_a_database_that_is_not_up_to_date(desk: Desk, database: str) -> None:
    desk.write("comity.toml", MEMORY)
    named = {"COMITY_STORE_URL": database, "COMITY_PEPPER": "p" * 32}
    ran = await asyncio.to_thread(desk.run, "serve", **named)
    assert ran.status == 2
    assert "no tables yet; run `comity db migrate`" in ran.err
    await stores.upgrade_store(database)
    await run_on(database, NEWER)
    ran = await asyncio.to_thread(desk.run, "serve", **named)
    assert ran.status == 2
    assert "has schema 9999, which a newer version of Comity made" in ran.err


def test_a_store_that_cannot_be_reached_is_told_so(desk: Desk) -> None:
    url = "postgresql://me:s3cret@127.0.0.1:1/x"
    desk.write("comity.toml", MEMORY)
    ran = desk.run("db", "status", COMITY_STORE_URL=url)
    assert ran.status == 3
    assert "does not answer" in ran.err
    assert "s3cret" not in ran.err


def test_a_file_that_cannot_be_made_is_the_operators_mistake(desk: Desk, tmp_path: Path) -> None:
    desk.write("comity.toml", MEMORY)
    ran = desk.run("db", "migrate", COMITY_STORE_URL=f"sqlite:///{tmp_path}/no/such.db")
    assert ran.status == 2
    assert "cannot be written" in ran.err


@pytest.mark.parametrize("place", ["header", "middle"])
def test_a_damaged_file_stops_the_start_and_names_the_way_back(desk: Desk, place: str) -> None:
    desk.write("comity.toml", f'{MEMORY}[store]\nurl = "sqlite:///here.db"\n')
    assert desk.run("db", "migrate").status == 0
    file = desk.folder / "here.db"
    with file.open("r+b") as stream:
        if place == "header":
            stream.write(os.urandom(4096))
        else:
            stream.seek(file.stat().st_size // 2)
            stream.write(bytes(65_536))
    before = file.read_bytes()
    for command in (("serve",), ("serve", "--workers", "2"), ("keys", "list", "--offline")):
        ran = desk.run(*command)
        assert ran.status == 2, ran
        told = " ".join(ran.err.split())
        assert f"the store {file.resolve()} is damaged (" in told
        assert "`comity db backup`" in told
    assert file.read_bytes() == before
