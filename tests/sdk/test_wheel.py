"""The wheel in an environment of its own: SQLite without an extra, and each extra by itself."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.approved_files import approve_files

ROOT = Path(__file__).parents[2]
CONFIG = """
port = 0
[store]
url = "sqlite:///comity.db"
[[servers]]
id = "a"
command = "true"
"""
PROMISED = {
    "": ["comity.app.gateway", "comity.app.offline", "comity.sdk.agent", "comity.storage.sqlite"],
    "all": [
        "comity.app.processes.workers",
        "comity.audit.postgres_chain_writer",
        "comity.catalog.token_counter",
        "comity.cluster.nats.bus",
        "comity.identity.oauth",
        "comity.inference.providers.registry",
        "comity.secrets.backends",
        "comity.telemetry.otel",
        "comity.validation.shell",
    ],
    "aws": ["comity.secrets.providers.aws", "botocore.session"],
    "azure": ["comity.secrets.providers.azure", "azure.identity"],
    "gcp": ["comity.secrets.providers.gcp", "google.auth.transport.requests"],
    "keyring": ["comity.secrets.providers.local", "keyring"],
    "models": ["comity.inference.providers.registry"],
    "nats": ["comity.cluster.nats.bus"],
    "oauth": ["comity.identity.oauth"],
    "openapi": ["yaml", "comity.servers.openapi.compiler"],
    "otel": ["comity.telemetry.otel"],
    "postgres": ["comity.storage.postgres", "comity.audit.postgres_chain_writer"],
    "sdk": ["comity.sdk.server", "comity.sdk.testing", "comity.sdk.agent"],
    "semantic": ["comity.catalog.semantic.minilm"],
    "tokens": ["comity.catalog.token_counter"],
    "validators": ["comity.validation.shell"],
    "workers": [
        "comity.app.processes.workers",
        "comity.app.processes.local_bus",
        "comity.cluster.nats.bus",
    ],
}
"""The modules that each extra serves."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (made,) = place.glob("comity-*.whl")
    return made


def installed(wheel: Path, place: Path, extra: str = "") -> Path:
    """The programs of a new environment with the wheel and this extra alone."""
    uv = shutil.which("uv")
    assert uv is not None, "scripts/setup brings uv, and scripts/test puts it on the path"
    making = [uv, "venv", "--quiet", "--python", sys.executable, str(place)]
    subprocess.run(making, check=True, timeout=300)
    named = f"{wheel}[{extra}]" if extra else str(wheel)
    into = ["--python", str(place / "bin" / "python")]
    subprocess.run([uv, "pip", "install", "--quiet", *into, named], check=True, timeout=300)
    return place / "bin"


def test_every_extra_promises_something() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*project["optional-dependencies"]} == {*PROMISED} - {""}


def test_all_holds_every_extra_of_a_gateway() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (everything,) = project["optional-dependencies"]["all"]
    named = everything.removeprefix("comity[").removesuffix("]").split(",")
    # The weights of `semantic` are installed apart, and `sdk` is for authors of servers.
    assert {*named} == {*PROMISED} - {"", "all", "sdk", "semantic"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", PROMISED)
def test_the_modules_of_an_extra_import_with_it_alone(
    wheel: Path, tmp_path: Path, extra: str
) -> None:
    python = installed(wheel, tmp_path / "environment", extra) / "python"
    subprocess.run([python, "-c", f"import {', '.join(PROMISED[extra])}"], check=True, timeout=120)


@pytest.mark.timeout(900)
def test_without_an_extra_keys_grants_asks_and_the_audit_log_are_kept_in_sqlite(
    wheel: Path, tmp_path: Path
) -> None:
    comity = installed(wheel, tmp_path / "environment") / "comity"
    (tmp_path / "comity.toml").write_text(CONFIG)
    env = {**os.environ, "COMITY_STATE_DIR": str(tmp_path / "state")}
    approve_files(tmp_path, env)

    def run(*words: str) -> str:
        done = subprocess.run(
            [comity, *words, "--offline"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "cmty_" in run("keys", "create", "agent:ci")
    run("grants", "create", "agent:ci", "a/x")
    assert "agent:ci" in run("grants")
    assert "There are no open requests" in run("approvals")
    run("audit", "verify")
