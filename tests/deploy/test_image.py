"""The image, as far as it goes without a base image: its lock, files and command in a sandbox.

bubblewrap stands in for the container engine. It gives Comity the user, the folders, the variables
and the command that the Containerfile names, and a read-only root.
"""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.test_container import last
from tests.interop.processes import free_port
from tests.support.bootstrap import PrintingGateway, call_tool, printing_gateway

BWRAP = shutil.which("bwrap")
STATE = "/var/lib/comity"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(BWRAP is None, reason="bubblewrap is not installed"),
]

SERVERS = """
[policy]
require_approval = "never"
[[servers]]
id = "try"
command = "comity"
args = ["dev", "example-server"]
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Containerfile builds at /opt/comity: the locked packages and the wheel."""
    uv = shutil.which("uv")
    assert uv is not None, "scripts/setup brings uv, and scripts/test puts it on the path"
    place = tmp_path_factory.mktemp("image")
    made = place / "comity"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    into = ["--quiet", "--python", str(made / "bin" / "python")]
    locked = ["--require-hashes", "--requirement", str(DEPLOY / "requirements.lock")]
    for words in (
        ["venv", "--quiet", "--relocatable", "--python", sys.executable, str(made)],
        ["pip", "install", *into, *locked],
        ["pip", "install", *into, "--no-deps", *map(str, place.glob("comity-*.whl"))],
    ):
        subprocess.run([uv, *words], check=True, timeout=600)
    # The environment is mounted elsewhere, and in the image its scripts name that place.
    script = made / "bin" / "comity"
    lines = script.read_text(encoding="utf-8").splitlines(keepends=True)
    code = next(number for number, line in enumerate(lines) if line.startswith("import "))
    script.write_text("#!/opt/comity/bin/python\n" + "".join(lines[code:]), encoding="utf-8")
    return made


def sandbox(environment: Path, config: Path, state: Path, port: int) -> list[str]:
    """The command that runs another one as the container would."""
    assert BWRAP is not None
    user, group = last("slim", "USER").split(":")
    variables = dict(word.split("=", 1) for word in shlex.split(last("slim", "ENV")))
    variables["PATH"] = variables["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
    variables["COMITY_PORT"] = str(port)
    system = ["/bin", "/lib", "/lib64", "/usr", "/etc/ssl", "/etc/ld.so.cache", sys.base_prefix]
    return [
        *(BWRAP, "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc"),
        *("--uid", user, "--gid", group, "--clearenv", "--dev", "/dev", "--proc", "/proc"),
        # Before the Python of these tests, which may itself be below /tmp.
        *("--tmpfs", "/tmp"),
        *(word for path in system for word in ("--ro-bind-try", path, path)),
        *("--ro-bind", str(environment), "/opt/comity"),
        *("--tmpfs", "/usr/local/bin"),
        *("--ro-bind", str(DEPLOY / "image" / "health-check"), "/usr/local/bin/health-check"),
        *("--ro-bind", str(config), "/etc/comity/comity.toml", "--bind", str(state), STATE),
        *("--chdir", last("slim", "WORKDIR")),
        *(word for pair in variables.items() for word in ("--setenv", *pair)),
    ]


@contextmanager
def container(
    environment: Path, folder: Path, config: Path, output: str
) -> Generator[tuple[PrintingGateway, list[str]]]:
    """Run the image's own command. Yield the gateway, and what runs other commands beside it."""
    state = folder / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    around = sandbox(environment, config, state, free_port())
    command = json.loads(last("slim", "ENTRYPOINT")) + json.loads(last("slim", "CMD"))
    with printing_gateway([*around, *command], folder / output) as gateway:
        yield gateway, around


def is_healthy(around: list[str], *path: str) -> bool:
    words = json.loads(last("slim", "HEALTHCHECK").partition(" CMD ")[2])
    done = subprocess.run([*around, *words, *path], capture_output=True, timeout=30, check=False)
    return done.returncode == 0


def test_the_image_starts_as_it_is_and_is_healthy(environment: Path, tmp_path: Path) -> None:
    config = DEPLOY / "image" / "comity.toml"
    with container(environment, tmp_path, config, "out") as (gateway, around):
        assert len(gateway.keys) == 1
        assert "listening on http://0.0.0.0:" in gateway.program.said
        assert is_healthy(around)
        assert is_healthy(around, "/ready")
        assert not is_healthy(around, "/metrics")
        nowhere = [word.replace(gateway.origin.rpartition(":")[2], "9") for word in around]
        assert not is_healthy(nowhere)
        assert not gateway.program.said.count("Traceback")
    kept = {each.name for each in (tmp_path / "state").iterdir()}
    assert {"comity.db", "comity.db.pepper"} <= kept


def test_the_key_of_the_first_start_calls_tools_in_every_later_one(
    environment: Path, tmp_path: Path
) -> None:
    config = tmp_path / "comity.toml"
    config.write_text((DEPLOY / "image" / "comity.toml").read_text(encoding="utf-8") + SERVERS)
    with container(environment, tmp_path, config, "first") as (gateway, _):
        (key,) = gateway.keys
        assert call_tool(gateway.origin, "try__echo", key, message="hello")[0] == 200
        assert call_tool(gateway.origin, "try__echo", "none", message="hello")[0] == 401
    with container(environment, tmp_path, config, "second") as (gateway, _):
        assert gateway.keys == []
        assert call_tool(gateway.origin, "try__echo", key, message="again")[0] == 200
