"""The public peers of the tests: installed once at exact versions, under `.tools`.

Three things come from public indexes: the JavaScript packages named in `js/package.json`, the
Python SDK of the line before (`python/sdk1.lock`), which cannot stand beside the one that is
locked for the tests, and the official fixture server, which is part of the `mcp` source archive
and of no wheel.
"""

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools"
SERVERS = Path(__file__).parent / "servers"

FIXTURE_VERSION = "2.3.0"
FIXTURE_SHA256 = "8b147a50441cf059dc88c684e0aeed3687f0aa0f39c6cde7b90330effd2b34d8"
_FIXTURE_FOLDER = f"mcp-{FIXTURE_VERSION}/examples/servers/everything-server/"
_INSTALL_SECONDS = 600
_MANIFEST = Path(__file__).parent / "js" / "package.json"
_SDK1_LOCK = Path(__file__).parent / "python" / "sdk1.lock"


def javascript() -> Path:
    """The folder whose `node_modules` holds the JavaScript peers; installed when it is not."""
    home = TOOLS / "js"
    with one_at_a_time("js"):
        installed = home / "installed.json"
        wanted = _MANIFEST.read_text()
        if not installed.exists() or installed.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            (home / "package.json").write_text(wanted)
            _run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], home)
            _check_versions(home, wanted)
            # Written last: an install that was interrupted is begun again.
            installed.write_text(wanted)
    return home


def node() -> str:
    """A Node new enough for the conformance suite, whatever the machine's own is."""
    return str(javascript() / "node_modules" / "node" / "bin" / "node")


def package(name: str, entry: str) -> str:
    """The path of a file inside an installed JavaScript package."""
    path = javascript() / "node_modules" / name / entry
    if not path.exists():
        raise FileNotFoundError(f"{name} has no file {entry}")
    return str(path)


def python_sdk_1() -> str:
    """The interpreter of an environment that has the Python SDK 1, and nothing of Comity."""
    return locked_environment("python-sdk-1", _SDK1_LOCK)


def locked_environment(name: str, lock: Path) -> str:
    """The interpreter of an environment that has what a lock names, and nothing else."""
    home = TOOLS / name
    with one_at_a_time(name):
        installed = home / "installed.lock"
        wanted = lock.read_text()
        if not installed.exists() or installed.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            _run(["uv", "venv", "--quiet", "--python", sys.executable, str(home)], TOOLS)
            into = ["--python", str(home / "bin" / "python"), "--require-hashes"]
            _run(["uv", "pip", "sync", "--quiet", *into, str(lock)], TOOLS)
            installed.write_text(wanted)
    return str(home / "bin" / "python")


def official_fixture() -> Path:
    """The folder to put on PYTHONPATH so that `mcp_everything_server` can be imported."""
    home = TOOLS / f"everything-server-{FIXTURE_VERSION}"
    with one_at_a_time("fixture"):
        if not home.exists():
            archive = _download_archive()
            partial = home.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            _unpack(archive, partial)
            partial.rename(home)
    return home


def _download_archive() -> Path:
    target = TOOLS / "archives"
    target.mkdir(parents=True, exist_ok=True)
    archive = target / f"mcp-{FIXTURE_VERSION}.tar.gz"
    if not archive.exists():
        pip = ["uv", "run", "--quiet", "--no-project", "--with", "pip", "python", "-m", "pip"]
        wanted = ["--no-deps", "--no-binary", "mcp", f"mcp=={FIXTURE_VERSION}"]
        _run([*pip, "download", "--quiet", *wanted, "--dest", str(target)], target)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != FIXTURE_SHA256:
        archive.unlink()
        raise RuntimeError(f"the archive of mcp {FIXTURE_VERSION} is not the known one: {digest}")
    return archive


def _unpack(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            if member.name.startswith(_FIXTURE_FOLDER):
                member.name = member.name.removeprefix(_FIXTURE_FOLDER)
                opened.extract(member, target, filter="data")


def _check_versions(home: Path, wanted: str) -> None:
    for name, version in json.loads(wanted)["dependencies"].items():
        found = json.loads((home / "node_modules" / name / "package.json").read_text())["version"]
        if found != version:
            raise RuntimeError(f"{name} {found} was installed instead of {version}")


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


@contextmanager
def one_at_a_time(name: str) -> Generator[None]:
    # Several test workers, and the script beside them, may find a tool missing at once.
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
