"""`comity check` and `comity doctor` with a real database, NATS and issuer, working and not."""

import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from comity.adapters import stores
from tests.adapters.issuing import IssuerServer, SigningKey, issuing
from tests.cli.program import EXAMPLE, Desk
from tests.cluster.nats_cluster import NatsCluster, a_nats_cluster
from tests.contracts.stores import a_database
from tests.interop.processes import free_port

PEPPER = {"COMITY_PEPPER": "0123456789abcdef0123456789abcdef"}
CANARY = "canary-of-a-password"


@pytest.fixture
async def database() -> AsyncGenerator[str]:
    async with a_database() as url:
        yield url


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsCluster]:
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def issuer() -> Generator[IssuerServer]:
    with issuing(SigningKey("one", "ES256")) as server:
        yield server


def write_config(desk: Desk, store: str, nats: str, issuer: str) -> None:
    desk.write(
        "comity.toml",
        f"""\
port = 0

[store]
url = "{store}"

[cluster]
url = "{nats}"

[[identity.issuers]]
issuer = "{issuer}"
audience = "http://127.0.0.1:2664"

[[servers]]
id = "example"
command = '{EXAMPLE["command"]}'
args = ["-m", "comity.cli", "example"]
""",
    )


def checked(desk: Desk, command: str, **env: str) -> dict[str, dict[str, Any]]:
    ran = desk.run(command, "--json", **env)
    assert CANARY not in ran.out + ran.err
    findings = ran.json["engines" if command == "check" else "findings"]
    assert ran.status == any(each["verdict"] == "problem" for each in findings)
    return {each["about"].split()[0]: each for each in findings}


@pytest.mark.parametrize("command", ["check", "doctor"])
async def test_engines_that_work_are_told(
    desk: Desk, database: str, nats: NatsCluster, issuer: IssuerServer, command: str
) -> None:
    await stores.upgrade(database)
    write_config(desk, database, nats.servers[0].url, issuer.url)
    found = checked(desk, command, **PEPPER)
    engines = {name: found[name]["verdict"] for name in ("store", "pepper", "NATS", "issuer")}
    assert engines == dict.fromkeys(engines, "ok")
    assert "version 2." in found["NATS"]["told"]
    assert found["issuer"]["told"] == "offers 1 key"
    text = desk.run("check", **PEPPER)
    assert (text.status, "No mistakes" in text.out) == (0, True)


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_all_that_does_not_work_is_told_at_once(desk: Desk, command: str) -> None:
    away = f"127.0.0.1:{free_port()}"
    write_config(
        desk,
        f"postgresql://me:{CANARY}@{away}/comity",
        f"nats://me:{CANARY}@{away}",
        f"http://{away}",
    )
    found = checked(desk, command)
    engines = {name: found[name]["verdict"] for name in ("store", "pepper", "NATS", "issuer")}
    assert engines == dict.fromkeys(engines, "problem")
    assert "COMITY_PEPPER" in found["pepper"]["told"]
    assert "does not answer" in found["store"]["told"]
    assert away in found["NATS"]["told"]


def test_offline_nothing_is_contacted(desk: Desk) -> None:
    away = f"127.0.0.1:{free_port()}"
    write_config(desk, f"postgresql://{away}/comity", f"nats://{away}", f"http://{away}")
    offline = desk.run("check", "--offline")
    assert (offline.status, "No mistakes" in offline.out) == (0, True)


def test_a_database_without_tables_is_a_problem(
    desk: Desk, database: str, nats: NatsCluster, issuer: IssuerServer
) -> None:
    write_config(desk, database, nats.servers[0].url, issuer.url)
    found = checked(desk, "check", **PEPPER)
    assert found["store"]["verdict"] == "problem"
    assert found["store"]["remedy"] == "run `comity store upgrade`"


def test_a_file_that_serve_will_make_is_fine_and_is_not_made(desk: Desk) -> None:
    desk.write("comity.toml", 'port = 0\n[store]\nurl = "sqlite:///here.db"\n')
    found = checked(desk, "check")
    assert found["store"]["verdict"] == "ok"
    assert not (desk.folder / "here.db").exists()
    assert not (desk.folder / "here.db.pepper").exists()


async def test_a_store_of_a_newer_version_is_a_problem(desk: Desk) -> None:
    url = f"sqlite:///{desk.folder / 'here.db'}"
    await stores.upgrade(url)
    with closing(sqlite3.connect(desk.folder / "here.db")) as store, store:
        store.execute("UPDATE comity_schema SET version_num = 'newer'")
    desk.write("comity.toml", f'port = 0\n[store]\nurl = "{url}"\n')
    found = checked(desk, "check")["store"]
    assert (found["verdict"], found["remedy"]) == ("problem", "run that version")
    assert "schema newer, which a newer version of Comity made" in found["told"]


def test_a_pepper_that_others_can_read_is_a_problem(desk: Desk) -> None:
    desk.write("comity.toml", 'port = 0\n[store]\nurl = "sqlite:///here.db"\n')
    desk.write("here.db.pepper", "0123456789abcdef0123456789abcdef").chmod(0o644)
    found = checked(desk, "check")
    assert found["pepper"]["verdict"] == "problem"


def test_an_extra_that_is_not_installed_is_named_with_its_command(
    desk: Desk, tmp_path: Path
) -> None:
    """A finder at the start of the program hides two packages, as if they had never been there."""
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "_find = importlib.util.find_spec\n"
        "def find_spec(name, package=None):\n"
        "    return None if name in ('asyncpg', 'nats') else _find(name, package)\n"
        "importlib.util.find_spec = find_spec\n"
    )
    away = f"127.0.0.1:{free_port()}"
    write_config(desk, f"postgresql://{away}/comity", f"nats://{away}", f"http://{away}")
    ran = desk.run("check", "--json", PYTHONPATH=str(hiding))
    missing = {each["about"]: each for each in ran.json["engines"] if "extra" in each["about"]}
    assert missing.keys() == {"extra postgres", "extra nats"}
    assert missing["extra nats"]["remedy"] == "pip install 'comity[nats]'"
    assert "asyncpg" in missing["extra postgres"]["told"]
    # What cannot be used without its extra is not tested beside it.
    assert not {"store", "NATS"} & {each["about"] for each in ran.json["engines"]}
