"""The compose file: every part watched, nothing reachable from elsewhere, no secret in it."""

import re
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from comity.app.settings_reader import ConfigSource
from tests.cluster.nats_cluster import nats_program
from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.test_container import stages

type Table = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> Table:
    return cast("Table", yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8")))


def services(compose: Table) -> dict[str, Table]:
    return compose["services"]


def test_every_service_says_how_it_is_and_keeps_what_it_has(compose: Table) -> None:
    for name, service in services(compose).items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped", name
        named = [str(each).partition(":")[0] for each in service["volumes"]]
        kept = [each for each in named if not each.startswith(".")]
        assert kept, name
        assert set(kept) <= compose["volumes"].keys(), name


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
    for service in services(compose).values():
        for port in service.get("ports", []):
            assert str(port).startswith("127.0.0.1:")


def test_no_secret_stands_in_it_and_none_is_kept_with_it(compose: Table) -> None:
    for service in services(compose).values():
        for name in service.get("environment", {}):
            assert not re.search(r"PASSWORD|TOKEN|SECRET|KEY", name) or name.endswith("_FILE")
    for secret in compose["secrets"].values():
        assert secret.keys() == {"file"}
        assert secret["file"].startswith("./secrets/")
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "deploy/secrets/" in ignored
    used = [each for service in services(compose).values() for each in service.get("secrets", [])]
    names = {each if isinstance(each, str) else each["source"] for each in used}
    assert names == compose["secrets"].keys()


def test_the_gateways_own_container_can_write_only_where_it_must(compose: Table) -> None:
    gateway = services(compose)["comity"]
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    assert gateway["network_mode"] == "host"


def test_the_configuration_it_serves_is_one() -> None:
    config = DEPLOY / "config" / "comity.toml"
    found = ConfigSource(Path(), Path.home(), {}, config, {}).load()
    assert found.settings.host == "127.0.0.1"


def test_nats_understands_its_configuration(tmp_path: Path) -> None:
    text = (DEPLOY / "nats.conf").read_text(encoding="utf-8")
    (tmp_path / "nats.conf").write_text(text.replace("/data", str(tmp_path)))
    (tmp_path / "token.conf").write_text('token: "for this test"\n')
    checked = subprocess.run(
        [nats_program(), "-t", "-c", str(tmp_path / "nats.conf")],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
