"""The compose file: every part watched, nothing reachable from elsewhere, no secret in it."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.cli.program import EXAMPLE
from tests.cluster.nats_cluster import nats_program
from tests.cluster.postgres import Postgres, a_postgres
from tests.deploy.files import DEPLOY, ROOT, understood
from tests.deploy.test_container import last, stages
from tests.interop.processes import accepts, free_port, running
from tests.support.bootstrap import call_tool, printing_gateway
from tests.support.fork_server import COMITY

type Table = dict[str, Any]

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
SERVERS = f"""
[policy]
require_approval = "never"
[[servers]]
id = "try"
command = "{EXAMPLE["command"]}"
args = {json.dumps(EXAMPLE["args"])}
"""


@pytest.fixture(scope="module")
def compose() -> Table:
    return cast("Table", yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8")))


def services(compose: Table) -> dict[str, Table]:
    return compose["services"]


def test_every_service_is_watched_and_started_again(compose: Table) -> None:
    for name, service in services(compose).items():
        if name == "schema":
            assert service["restart"] == "on-failure"
            continue
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped", name


def test_databases_keep_their_data_in_named_volumes(compose: Table) -> None:
    for name in ("postgres", "nats"):
        named = [str(each).partition(":")[0] for each in services(compose)[name]["volumes"]]
        assert {each for each in named if not each.startswith(".")} <= compose["volumes"].keys()
        assert any(each in compose["volumes"] for each in named)


def test_what_is_mounted_and_built_from_exists(compose: Table) -> None:
    build = services(compose)["comity"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert build["target"] in stages()
    for service in services(compose).values():
        for volume in service["volumes"]:
            source = str(volume).partition(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists()


def test_nothing_is_reachable_from_elsewhere(compose: Table) -> None:
    for name, service in services(compose).items():
        assert "network_mode" not in service
        for port in service.get("ports", []):
            assert str(port).startswith("127.0.0.1:")
        if name != "comity":
            assert service["networks"] == ["inside"]
    assert compose["networks"]["inside"] == {"internal": True}


def test_no_secret_stands_in_it_and_none_is_kept_with_it(compose: Table) -> None:
    for service in services(compose).values():
        for name in service.get("environment", {}):
            assert not re.search(r"PASSWORD|TOKEN|SECRET|KEY", name) or name.endswith("_FILE")
    for secret in compose["secrets"].values():
        assert secret.keys() == {"file"}
        assert secret["file"].startswith("./secrets/")
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "deploy/secrets/" in ignored
    used = {each for service in services(compose).values() for each in service.get("secrets", [])}
    assert used == compose["secrets"].keys()


def test_the_gateways_own_container_can_write_only_where_it_must(compose: Table) -> None:
    gateway = services(compose)["comity"]
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]


def test_its_commands_are_real_ones(compose: Table) -> None:
    assert understood(services(compose)["schema"]["command"]) == "db"
    # The nodes run the command of the image.
    assert "command" not in services(compose)["comity"]


@dataclass
class ComposeParts:
    """The folder with the secrets and the configuration, and where the databases listen."""

    folder: Path
    addresses: dict[str, str]

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    @property
    def config(self) -> Path:
        return self.folder / "config" / "comity.toml"

    def localised(self, text: str) -> str:
        """The same text for this machine, which has no network and no folders of a container."""
        text = text.replace("/run/secrets", str(self.secrets)).replace("/etc/comity", ".")
        for name, address in self.addresses.items():
            text = text.replace(f"@{name}", f"@{address}")
        return text

    def environment(self, service: Table) -> dict[str, str]:
        return {name: self.localised(text) for name, text in service["environment"].items()}


@pytest.fixture
def parts(compose: Table, tmp_path: Path) -> Generator[ComposeParts]:
    """PostgreSQL and NATS with the passwords and files of the compose file."""
    shutil.copytree(DEPLOY / "config", tmp_path / "config")
    shutil.copy(DEPLOY / "make-secrets", tmp_path)
    subprocess.run([tmp_path / "make-secrets"], check=True, timeout=30)
    with a_postgres() as postgres, ExitStack() as stack:
        nats_port = free_port()
        found = ComposeParts(
            tmp_path,
            {"postgres:5432": f"127.0.0.1:{postgres.port}", "nats:4222": f"127.0.0.1:{nats_port}"},
        )
        for file in found.secrets.iterdir():
            # On this machine they are no mounted secrets, so only their owner may read them.
            file.chmod(0o600)
        _create_database(postgres, services(compose)["postgres"], found)
        stack.enter_context(_nats(services(compose)["nats"], found, nats_port))
        found.config.write_text(found.localised(found.config.read_text(encoding="utf-8")) + SERVERS)
        yield found


def _create_database(postgres: Postgres, service: Table, parts: ComposeParts) -> None:
    """Do what the image does: a user with the password of the file, and its database."""
    named = parts.environment(service)
    user, password = named["POSTGRES_USER"], Path(named["POSTGRES_PASSWORD_FILE"]).read_text()
    sent = f"""
        CREATE ROLE {user} LOGIN PASSWORD '{password}';
        CREATE DATABASE {named["POSTGRES_DB"]} OWNER {user};
        SHOW hba_file;
    """
    said = subprocess.run(
        ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", postgres.url],
        input=sent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rules = Path(said.stdout.strip())
    rules.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    reload = ["psql", "-XAtqc", "SELECT pg_reload_conf()", postgres.url]
    subprocess.run(reload, check=True, capture_output=True, timeout=60)


@contextmanager
def _nats(service: Table, parts: ComposeParts, port: int) -> Generator[None]:
    config = (DEPLOY / "nats.conf").read_text(encoding="utf-8")
    config = config.replace("4222", str(port)).replace("8222", str(free_port()))
    (parts.folder / "nats.conf").write_text(config.replace("/data", str(parts.folder / "nats")))
    shell, flag, script = service["entrypoint"]
    script = parts.localised(script).replace("$$", "$")
    script = script.replace("nats-server", nats_program())
    script = script.replace("/etc/nats/nats.conf", str(parts.folder / "nats.conf"))
    with running([shell, flag, script]) as program:
        program.wait_until(lambda: accepts(port))
        yield


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_two_nodes_share_the_first_key_and_answer_calls(
    compose: Table, parts: ComposeParts
) -> None:
    service = services(compose)["comity"]
    environment = {**parts.environment(service), "COMITY_PORT": "0"}
    schema = [parts.localised(word) for word in services(compose)["schema"]["command"]]
    upgraded = subprocess.run(
        [COMITY, *schema],
        cwd=parts.config.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert upgraded.returncode == 0, upgraded.stderr
    command = [
        parts.localised(word) for word in json.loads(last(service["build"]["target"], "CMD"))
    ]
    command = [COMITY, *(str(parts.config) if "toml" in word else word for word in command)]
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(printing_gateway(command, parts.folder / name, environment))
            for name in ("first", "second")
        ]
        (key,) = [key for node in nodes for key in node.keys]
        for node in nodes:
            status, text = call_tool(node.origin, "try__echo", key, message="hello")
            assert (status, "hello" in text) == (200, True)
            assert call_tool(node.origin, "try__echo", "none", message="x")[0] == 401
            node.program.wait_until(partial(_sees_the_other, node.origin))
        first, second = nodes
        session, _ = _send(first.origin, key, "initialize", HELLO)
        call = {"name": "try__echo", "arguments": {"message": "from the other node"}}
        _, text = _send(second.origin, key, "tools/call", call, session)
        assert "from the other node" in text


def _sees_the_other(origin: str) -> bool:
    with urllib.request.urlopen(f"{origin}/ready", timeout=30) as ready:  # noqa: S310 - loopback
        return json.load(ready)["cluster"]["nodes"] == 2


def _send(origin: str, key: str, method: str, params: Table, session: str = "") -> tuple[str, str]:
    """Send one message of MCP, and return the session and the answer."""
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **({"Mcp-Session-Id": session} if session else {}),
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    asked = urllib.request.Request(f"{origin}/mcp", body, headers)  # noqa: S310 - loopback
    with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310 - loopback
        return answer.headers["Mcp-Session-Id"] or session, answer.read().decode()
