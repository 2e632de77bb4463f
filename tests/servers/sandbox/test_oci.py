"""Servers that are images: the command line of the engine, and a real podman."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from comity.errors import Unavailable
from comity.servers.process.process import ServerCommand
from comity.servers.sandbox.levels import MachineSandbox
from comity.servers.sandbox.model import SandboxAccess, SandboxLevel, SandboxLimits, SandboxPolicy
from comity.servers.sandbox.oci import Container, find_engine
from tests.interop.processes import comity
from tests.servers.sandbox.test_confined_gateway import Confined, a_site, within

IMAGE = f"ghcr.io/example/server@sha256:{'a' * 64}"
SERVER = Path(__file__).with_name("image_server.py")
SECRET = "a-value-that-is-secret"


def wrap(
    engine: str,
    access: SandboxAccess | None = None,
    *,
    image: str = IMAGE,
    env: Mapping[str, str] | None = None,
) -> ServerCommand:
    limits = SandboxLimits(memory=2**28, processes=32, cpu_percent=50)
    policy = SandboxPolicy(SandboxLevel.OCI, access or SandboxAccess(), limits)
    command = ServerCommand((image, "--port", "x"), env or {})
    return Container(f"/usr/bin/{engine}", "comity-1").wrap(command, policy)


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_a_container_has_nothing_that_was_not_granted(engine: str) -> None:
    argv = wrap(engine, env={"API_KEY": SECRET}).argv
    assert argv[:2] == (f"/usr/bin/{engine}", "run")
    assert argv[-3:] == (IMAGE, "--port", "x")
    assert {
        *("--rm", "--interactive", "--read-only", "--cap-drop=ALL", "--network=none"),
        *("--security-opt=no-new-privileges", "--log-driver=none", "--user=65534:65534"),
        *("--pids-limit=32", f"--memory={2**28}", f"--memory-swap={2**28}", "--cpus=0.5"),
        *("--ulimit=nofile=1024:1024", "--env=API_KEY", "--env=HTTP_PROXY=", "--env=HOME=/tmp"),
    } <= set(argv)
    assert "--mount" not in argv
    assert SECRET not in " ".join(argv)
    assert ("--http-proxy=false" in argv) == (engine == "podman")


def test_granted_folders_are_mounted_and_belong_to_the_gateway(tmp_path: Path) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
    read, write, absent = (str(tmp_path / name) for name in ("read", "write", "absent"))
    argv = wrap("docker", SandboxAccess((read, absent), (write,))).argv
    mounts = [word for before, word in itertools.pairwise(argv) if before == "--mount"]
    assert mounts == [
        f"type=bind,source={read},destination={read},readonly",
        f"type=bind,source={write},destination={write}",
    ]
    assert f"--user={os.getuid()}:{os.getgid()}" in argv


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "no digest": ("has no digest", lambda: wrap("podman", image="ghcr.io/example/server:1")),
    "an option": ("has no digest", lambda: wrap("podman", image=f"--x@sha256:{'a' * 64}")),
    "a host": ("no network", lambda: wrap("podman", SandboxAccess(hosts=("a.example:443",)))),
    "the engine": ("DOCKER_HOST", lambda: wrap("docker", env={"DOCKER_HOST": "tcp://x"})),
    "a comma": ("comma", lambda: wrap("podman", SandboxAccess(("/srv/a,destination=/etc",)))),
}


@pytest.mark.parametrize(("reason", "attempt"), REFUSED.values(), ids=REFUSED)
def test_an_image_that_cannot_be_confined_is_refused(
    reason: str, attempt: Callable[[], object]
) -> None:
    with pytest.raises(Unavailable, match=reason):
        attempt()


def test_only_its_name_chooses_a_container() -> None:
    machine = MachineSandbox(SandboxLevel.BASIC, "no Landlock")
    assert machine.choose("oci", must_confine=True) is SandboxLevel.OCI
    assert machine.choose("auto", must_confine=False) is SandboxLevel.BASIC


STORAGE = """
[storage]
driver = "vfs"
graphroot = "{place}/images"
runroot = "{place}/run"
"""
# The defaults of podman are above the limits of some machines.
ENGINE = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=2048:2048"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
{runtime}
"""


def podman(*words: str) -> str:
    done = subprocess.run(
        ["podman", *words], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"podman does not work here: {done.stderr[-300:]}")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """An image with Python and the server, in a storage of its own."""
    if find_engine("podman") is None or sys.platform != "linux":
        pytest.skip("podman is not installed")
    place = tmp_path_factory.mktemp("podman")
    runtime = 'runtime = "runc"' if shutil.which("runc") else ""
    (place / "storage.conf").write_text(STORAGE.format(place=place))
    (place / "containers.conf").write_text(ENGINE.format(runtime=runtime))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(place / "storage.conf"))
        patch.setenv("CONTAINERS_CONF", str(place / "containers.conf"))
        make_root(place / "root")
        tar = shutil.make_archive(str(place / "root"), "tar", place / "root")
        entry = 'ENTRYPOINT ["/python/bin/python3", "/server.py"]'
        podman("import", "--change", entry, tar, "localhost/comity-test:1")
        digest = podman("image", "inspect", "--format", "{{.Digest}}", "localhost/comity-test:1")
        name = f"localhost/comity-test@{digest}"
        limited = ("--network=none", "--pids-limit=32")
        podman("run", "--rm", *limited, "--entrypoint=/python/bin/python3", name, "-c", "")
        yield name
        podman("rm", "--all", "--force")


def make_root(root: Path) -> None:
    """Create the file system of an image: Python with the libraries that it needs."""
    base, name = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    unused = shutil.ignore_patterns("test", "site-packages", "__pycache__", "idlelib", "*.a")
    shutil.copytree(base / "lib" / name, root / "python" / "lib" / name, ignore=unused)
    (root / "python" / "bin").mkdir()
    python = shutil.copy(base / "bin" / name, root / "python" / "bin" / "python3")
    needed = subprocess.run(["ldd", python], capture_output=True, text=True, check=True).stdout
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy(library, root / "python" / "lib")
    for found in re.findall(r"(/\S+)\s+\(", needed):
        target = root / found.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, target)
    for folder in ("tmp", "proc", "dev", "sys", "etc", "run"):
        (root / folder).mkdir(exist_ok=True)
    shutil.copy(SERVER, root / "server.py")


@contextmanager
def image_gateway(
    folder: Path, image: str, permissions: Mapping[str, list[str]], *args: str
) -> Generator[Confined]:
    words = [f'"{name}" = {json.dumps(places)}' for name, places in permissions.items()]
    config = folder / "comity.toml"
    config.write_text(
        f"""
container_engine = "podman"

[store]
url = "sqlite:///{folder / "store.db"}"

[[servers]]
id = "confined"
command = "{image}"
args = {json.dumps(args)}
sandbox = "oci"
env = {{ API_KEY = "{SECRET}" }}
max_memory_mb = 256

[servers.policy]
trust = "sandboxed"
permissions = {{ {", ".join(words)} }}
"""
    )
    with comity(config) as origin:
        yield Confined(origin, config)


@pytest.mark.integration
def test_an_image_does_what_it_was_granted_and_nothing_else(image: str, tmp_path: Path) -> None:
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"the file in {name}")
    permissions = {
        "filesystem.read": [str(tmp_path / "read")],
        "filesystem.write": [str(tmp_path / "write")],
    }
    with a_site() as port, image_gateway(tmp_path, image, permissions) as gateway:
        assert gateway.server()["sandbox"] == "oci", gateway.server()
        assert "the file in read" in gateway.call("read", value=f"{tmp_path}/read/file")
        for place in (f"{tmp_path}/other/file", str(gateway.config), sys.executable):
            assert "refused" in gateway.call("read", value=place)
        assert "refused" not in gateway.call("write", value=f"{tmp_path}/write/new")
        assert "refused" not in gateway.call("write", value="/tmp/new")
        for place in (f"{tmp_path}/read/new", f"{tmp_path}/other/new", "/new", "/var/new"):
            assert "refused" in gateway.call("write", value=place)
        assert "refused" in gateway.call("connect", value=f"127.0.0.1:{port}")
        assert SECRET in gateway.call("variable", value="API_KEY")
        assert "not set" in gateway.call("variable", value="COMITY_STATE_DIR")
        status = gateway.call("status")
        assert re.search(r"CapEff:\\t0+\\n.*CapBnd:\\t0+\\n.*NoNewPrivs:\\t1", status), status
        assert len(re.findall(r"\d+", gateway.call("processes").partition("text")[2])) < 5
    assert (tmp_path / "write" / "new").exists()
    assert podman("ps", "--all", "--quiet") == ""


@pytest.mark.integration
def test_without_folders_an_image_runs_as_nobody(image: str, tmp_path: Path) -> None:
    with image_gateway(tmp_path, image, {}) as gateway:
        assert "Uid:\\t65534\\t65534" in gateway.call("status")


@pytest.mark.integration
def test_a_granted_host_stops_the_start_of_an_image(image: str, tmp_path: Path) -> None:
    with image_gateway(tmp_path, image, {"network.outbound": ["a.example:443"]}) as gateway:
        assert "an image has no network" in gateway.server()["reason"]


@pytest.mark.integration
def test_a_killed_client_of_the_engine_leaves_no_container(image: str, tmp_path: Path) -> None:
    with image_gateway(tmp_path, image, {}, "--stays") as gateway:
        assert "Uid" in gateway.call("status")
        (first,) = podman("ps", "--format", "{{.Names}}").split()
        for process in psutil.process_iter(["cmdline"]):
            words: list[str] = process.info["cmdline"] or []
            if first in words and "run" in words and "podman" in words[0]:
                process.kill()
        # Comity starts the server again by itself.
        assert within(lambda: "Uid" in gateway.call("status"))
        (second,) = podman("ps", "--all", "--format", "{{.Names}}").split()
        assert second != first
    assert podman("ps", "--all", "--quiet") == ""
