"""`comity config check` and `comity doctor`: the configuration, the machine, and the engines."""

import json
import socket
import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from comity.app.checks import machine
from comity.app.checks.machine import check_machine
from comity.storage import stores
from tests.cli.program import EXAMPLE, Desk
from tests.cluster.nats_cluster import NatsCluster, a_nats_cluster
from tests.contracts.stores import a_database
from tests.interop.processes import free_port
from tests.support.issuing import IssuerServer, SigningKey, issuing

MISTAKEN = """\
prot = 5

[[servers]]
id = "a"
comand = "canary-1"
"""


def test_every_mistake_is_told_with_its_file_and_line(desk: Desk) -> None:
    desk.write("comity.toml", MISTAKEN)
    ran = desk.run("config", "check")
    assert ran.status == 1
    told = [line for line in ran.lines if "comity.toml:" in line]
    assert ":1: prot" in told[0]
    assert any(":5: servers[a].comand" in line for line in told)
    assert "canary" not in ran.out + ran.err
    listed = desk.run("config", "check", "-o", "json")
    assert (listed.status, listed.json["mistakes"][0]["line"]) == (1, 1)


def test_what_would_be_served_is_told(desk: Desk) -> None:
    off = {"url": "https://example.org/canary-1?key=canary-2", "disabled": True}
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "off": off}})
    ran = desk.run("config", "check")
    assert ran.status == 0
    assert "No mistakes" in ran.out
    assert any(line.split()[:3] == ["off", "http", "example.org"] for line in ran.lines)
    assert "canary" not in ran.out
    told = desk.run("config", "check", "-c", "mcp.json", "-o", "json").json
    assert [(each["id"], each["disabled"]) for each in told["servers"]] == [
        ("example", False),
        ("off", True),
    ]
    assert told["listen"] == "127.0.0.1:2664"


def test_files_that_are_passed_over_are_told(desk: Desk) -> None:
    desk.write("comity.toml", "")
    desk.write("mcp.json", {"mcpServers": {}})
    ran = desk.run("config", "check")
    assert (ran.status, "has priority" in ran.out) == (0, True)
    assert "there are no servers" in ran.out


def test_every_server_can_be_started_once_to_see(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    ran = desk.run("config", "check", "--start")
    assert (ran.status, "is ready" in ran.out) == (0, True)
    failing = {"command": "sh", "args": ["-c", "echo I am not well >&2; read line; exit 3"]}
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "failing": failing}})
    ran = desk.run("config", "check", "--start")
    assert (ran.status, "Not ready: failing." in ran.out) == (1, True)
    started = desk.run("config", "check", "--start", "-o", "json").json["started"]
    assert {each["id"]: each["state"] == "connected" for each in started} == {
        "example": True,
        "failing": False,
    }


@pytest.mark.parametrize("arguments", [(), ("-c", "absent.toml")])
def test_a_configuration_that_is_not_there_is_the_operators_mistake(
    desk: Desk, arguments: tuple[str, ...]
) -> None:
    ran = desk.run("config", "check", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("comity: ")


QUIET = {"HTTP_PROXY": "", "HTTPS_PROXY": "", "http_proxy": "", "https_proxy": "", "ALL_PROXY": ""}


@pytest.fixture
def taken() -> Generator[int]:
    """A port on which something listens that is no gateway."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def diagnosed(desk: Desk, *arguments: str, **env: str) -> dict[str, dict[str, Any]]:
    ran = desk.run("doctor", "-o", "json", *arguments, **{**QUIET, **env})
    findings = ran.json["findings"]
    assert ran.status == any(each["verdict"] == "problem" for each in findings)
    return {each["about"]: each for each in findings}


def configured(desk: Desk, port: int, **servers: dict[str, Any]) -> None:
    lines = [f"port = {port}"]
    for name, entry in servers.items():
        lines += ["[[servers]]", f'id = "{name}"']
        lines += [f"{key} = {value!r}" for key, value in entry.items()]
    desk.write("comity.toml", "\n".join(lines))


def test_where_all_is_well_that_is_said(desk: Desk) -> None:
    configured(desk, 0, example=EXAMPLE)
    ran = desk.run("doctor", **QUIET)
    assert ran.status == 0
    assert any(line.split()[:3] == ["ok", "server", "example"] for line in ran.lines)
    # A container engine of this machine may be installed and not run.
    others = [line for line in ran.lines if line.split()[1:2] != ["containers"]]
    assert not any(line.startswith(("warning", "problem")) for line in others)
    assert ran.lines[-1] in ("No problems found.", "1 warning.")


def test_missing_or_mistaken_configuration_is_a_problem_with_a_remedy(desk: Desk) -> None:
    found = diagnosed(desk)
    assert found["configuration"]["verdict"] == "problem"
    assert "comity init" in found["configuration"]["remedy"]
    desk.write("comity.toml", "prot = 5\n")
    found = diagnosed(desk)["configuration"]
    assert "comity.toml:1" in found["message"]
    assert "'port'" in found["remedy"]


def test_a_program_that_is_missing_is_told_with_how_to_get_it(desk: Desk) -> None:
    empty = str(desk.home)
    configured(
        desk,
        0,
        npx={"command": "npx"},
        other={"command": "no-such-program"},
        folder={"command": "sh", "cwd": "/no/such/folder"},
        there={"command": "/bin/sh"},
    )
    found = diagnosed(desk, PATH=empty)
    assert "Node.js" in found["server npx"]["remedy"]
    assert found["server other"]["verdict"] == "problem"
    assert "folder" in found["server folder"]["message"]
    assert found["server there"]["verdict"] == "ok"


def test_an_address_is_tried_and_its_trouble_told(desk: Desk, taken: int, gateway: str) -> None:
    configured(
        desk,
        0,
        there={"url": f"http://127.0.0.1:{taken}/canary"},
        gone={"url": "http://127.0.0.1:9/canary"},
        unknown={"url": "http://no-such-host.invalid/canary"},
        untrusted={"url": gateway.replace("http:", "https:") + "/canary"},
        comity={"url": "http://127.0.0.1:2664/mcp"},
    )
    found = diagnosed(desk)
    assert found["server there"]["verdict"] == "ok"
    assert "127.0.0.1:9" in found["server gone"]["message"]
    assert found["server unknown"]["verdict"] == "problem"
    assert "cannot be trusted" in found["server untrusted"]["message"]
    assert "loop" in found["server comity"]["message"], "the gateway would call itself"
    assert "canary" not in str(found)


def test_a_variable_that_is_nothing_is_told(desk: Desk) -> None:
    configured(desk, 0, example={**EXAMPLE, "cwd": "${NO_SUCH_VARIABLE:-}"})
    assert diagnosed(desk)["variable NO_SUCH_VARIABLE"]["verdict"] == "warning"
    assert "variable NO_SUCH_VARIABLE" not in diagnosed(desk, NO_SUCH_VARIABLE="/tmp")


def test_a_port_that_another_program_holds_is_told_with_its_name(desk: Desk, taken: int) -> None:
    configured(desk, taken, example=EXAMPLE)
    found = diagnosed(desk)["port"]
    assert found["verdict"] == "problem"
    assert str(taken) in found["message"]
    assert "--port" in found["remedy"]


def test_a_client_that_calls_another_port_is_told_the_right_one(desk: Desk, gateway: str) -> None:
    configured(desk, int(gateway.rpartition(":")[2]), example=EXAMPLE)
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"comity": {"url": "http://127.0.0.1:9/mcp"}}})
    desk.write("~/.lmstudio/mcp.json", {"mcpServers": {"comity": {"url": f"{gateway}/mcp"}}})
    started = {"command": "comity", "args": ["serve", "--stdio", "/no/such.toml"]}
    desk.write("~/.gemini/settings.json", {"mcpServers": {"comity": started}})
    found = diagnosed(desk)
    assert (found["port"]["verdict"], gateway in found["port"]["message"]) == ("ok", True)
    assert found["client cursor"]["remedy"] == f"comity clients connect cursor --url {gateway}"
    assert found["client lm-studio"]["verdict"] == "ok"
    assert found["client gemini"]["verdict"] == "problem"
    desk.run("clients", "connect", "cursor", "--url", gateway)
    assert diagnosed(desk)["client cursor"]["verdict"] == "ok"


def test_a_proxy_in_the_way_of_loopback_is_told(desk: Desk) -> None:
    assert diagnosed(desk)["proxies"]["verdict"] == "ok"
    proxied = diagnosed(desk, http_proxy="http://proxy:3128")["proxies"]
    assert (proxied["verdict"], "NO_PROXY" in proxied["remedy"]) == ("warning", True)
    spared = diagnosed(desk, http_proxy="http://proxy:3128", NO_PROXY="localhost, 127.0.0.1")
    assert spared["proxies"]["verdict"] == "ok"


def test_a_folder_that_cannot_be_written_and_a_low_limit_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))

    def few(kind: int) -> tuple[int, int]:
        return 256, 256

    monkeypatch.setattr("resource.getrlimit", few)
    found = {each.about: each for each in check_machine({})}
    assert found["temporary folder"].verdict == "problem"
    assert found["open files"].verdict == "warning"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(machine, "MIN_FREE_BYTES", 2**80)
    found = {each.about: each for each in check_machine({})}
    assert found["temporary folder"].verdict == "warning"


@pytest.mark.parametrize(
    ("script", "verdict"), [("exit 0", "ok"), ("exit 1", "warning"), ("exec sleep 60", "warning")]
)
def test_a_container_engine_must_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, verdict: str
) -> None:
    engine = tmp_path / "docker"
    engine.write_text(f"#!/bin/sh\n{script}\n")
    engine.chmod(0o700)
    monkeypatch.setattr(machine, "find_engine", lambda: str(engine))
    monkeypatch.setattr(machine, "ENGINE_SECONDS", 1.0 if "sleep" in script else 60.0)
    (finding,) = [each for each in check_machine({}) if each.about == "containers"]
    assert finding.verdict == verdict
    assert ("does not answer" in finding.message) is (verdict == "warning")


def test_who_listens_on_a_port_is_found(taken: int) -> None:
    assert "process" in machine.program_on_port(taken)
    assert machine.program_on_port(1) == ""


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
args = ["-m", "comity.cli", "dev", "example-server"]
""",
    )


def checked(desk: Desk, command: str, **env: str) -> dict[str, dict[str, Any]]:
    words = ("config", "check") if command == "check" else (command,)
    ran = desk.run(*words, "-o", "json", **env)
    assert CANARY not in ran.out + ran.err
    findings = ran.json["engines" if command == "check" else "findings"]
    assert ran.status == any(each["verdict"] == "problem" for each in findings)
    return {each["about"].split()[0]: each for each in findings}


@pytest.mark.parametrize("command", ["check", "doctor"])
async def test_engines_that_work_are_told(
    desk: Desk, database: str, nats: NatsCluster, issuer: IssuerServer, command: str
) -> None:
    await stores.upgrade_store(database)
    write_config(desk, database, nats.servers[0].url, issuer.url)
    found = checked(desk, command, **PEPPER)
    engines = {name: found[name]["verdict"] for name in ("store", "pepper", "NATS", "issuer")}
    assert engines == dict.fromkeys(engines, "ok")
    assert "version 2." in found["NATS"]["message"]
    assert found["issuer"]["message"] == "has 1 key"
    text = desk.run("config", "check", **PEPPER)
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
    assert "COMITY_PEPPER" in found["pepper"]["message"]
    assert "does not answer" in found["store"]["message"]
    assert away in found["NATS"]["message"]


def test_with_no_connect_nothing_is_contacted(desk: Desk) -> None:
    away = f"127.0.0.1:{free_port()}"
    write_config(desk, f"postgresql://{away}/comity", f"nats://{away}", f"http://{away}")
    offline = desk.run("config", "check", "--no-connect")
    assert (offline.status, "No mistakes" in offline.out) == (0, True)


def test_a_database_without_tables_is_a_problem(
    desk: Desk, database: str, nats: NatsCluster, issuer: IssuerServer
) -> None:
    write_config(desk, database, nats.servers[0].url, issuer.url)
    found = checked(desk, "check", **PEPPER)
    assert found["store"]["verdict"] == "problem"
    assert found["store"]["remedy"] == "run `comity db migrate`"


def test_a_file_that_serve_will_make_is_fine_and_is_not_made(desk: Desk) -> None:
    desk.write("comity.toml", 'port = 0\n[store]\nurl = "sqlite:///here.db"\n')
    found = checked(desk, "check")
    assert found["store"]["verdict"] == "ok"
    assert not (desk.folder / "here.db").exists()
    assert not (desk.folder / "here.db.pepper").exists()
    desk.write("here.db.pepper", "0123456789abcdef0123456789abcdef").chmod(0o644)
    assert checked(desk, "check")["pepper"]["verdict"] == "problem", "others can read it"


async def test_a_store_of_a_newer_version_is_a_problem(desk: Desk) -> None:
    url = f"sqlite:///{desk.folder / 'here.db'}"
    await stores.upgrade_store(url)
    with closing(sqlite3.connect(desk.folder / "here.db")) as store, store:
        store.execute("UPDATE comity_schema SET version_num = 'newer'")
    desk.write("comity.toml", f'port = 0\n[store]\nurl = "{url}"\n')
    found = checked(desk, "check")["store"]
    assert (found["verdict"], found["remedy"]) == ("problem", "run that version")
    assert "schema newer, which a newer version of Comity made" in found["message"]


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
    ran = desk.run("config", "check", "-o", "json", PYTHONPATH=str(hiding))
    missing = {each["about"]: each for each in ran.json["engines"] if "extra" in each["about"]}
    assert missing.keys() == {"extra postgres", "extra nats"}
    assert missing["extra nats"]["remedy"] == "pip install 'comity[nats]'"
    assert "asyncpg" in missing["extra postgres"]["message"]
    # What cannot be used without its extra is not tested beside it.
    assert not {"store", "NATS"} & {each["about"] for each in ran.json["engines"]}


def test_a_view_with_a_conflict_or_an_unknown_server_is_found(desk: Desk) -> None:
    server = f"command = {json.dumps(EXAMPLE['command'])}\nargs = {json.dumps(EXAMPLE['args'])}\n"
    servers = "".join(f'[[servers]]\nid = "{name}"\n{server}' for name in ("one", "two"))
    view = '[[views]]\nname = "both"\nprefix = "never"\nselect = ["*/echo", "three/x"]\n'
    desk.write("comity.toml", servers + view)
    ran = desk.run("config", "check")
    assert ran.status == 0
    assert "there is no server 'three'" in " ".join(ran.out.split())
    ran = desk.run("config", "check", "--start", "-o", "json")
    assert ran.status == 1
    (found,) = [each for each in ran.json["engines"] if each["verdict"] == "problem"]
    assert found["about"] == "view both"
    assert found["message"].startswith("two/echo is left out: one/echo has the name 'echo'")
