"""The package store with real npm and uv: resolving, installing, and changed files."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from comity.errors import Misconfigured, Unavailable
from comity.servers.packages.model import LockedPackage, PackageRequest
from comity.servers.packages.package_store import PackageStore
from comity.servers.packages.rules import read_command, resolution_digest
from tests.servers.packages.local_index import (
    NpmIndex,
    npm_environment,
    npm_index,
    uv_environment,
    write_wheel,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed"),
    pytest.mark.skipif(not shutil.which("uv"), reason="uv is not installed"),
]
ASKED = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'


@dataclass
class Shelf:
    """A store with one installed package, and the place where its index has newer ones."""

    store: PackageStore
    request: PackageRequest
    package: LockedPackage
    publish: Callable[[str], object]

    @property
    def files(self) -> Path:
        return self.store.folder / self.package.digest.removeprefix("sha256:") / "files"

    def find(self, name: str) -> Path:
        return next(each for each in self.files.rglob(name))


def asked(line: str) -> PackageRequest:
    request = read_command(line.split())
    assert request is not None
    return request


@pytest.fixture(scope="module")
def index() -> Iterator[NpmIndex]:
    with npm_index() as index:
        yield index


@pytest.fixture(params=["npm", "pypi"])
def shelf(
    request: pytest.FixtureRequest,
    index: NpmIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Shelf:
    wheels = tmp_path / "wheels"
    environ = npm_environment(index, tmp_path) | uv_environment(wheels, tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    index.manifests.clear()
    wheels.mkdir()
    is_npm = request.param == "npm"

    def publish(version: str) -> None:
        index.publish_greeter(version) if is_npm else write_wheel(wheels, version)

    publish("1.0.0")
    wanted = asked("npx -y greeter-mcp") if is_npm else asked("uvx greeter-py")
    store = PackageStore(tmp_path / "packages")
    package = asyncio.run(store.resolve(wanted))
    asyncio.run(store.install(package))
    return Shelf(store, wanted, package, publish)


def test_an_installed_package_runs_without_its_index(
    shelf: Shelf, index: NpmIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.requests.clear()
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:1/")
    *_, program = shelf.store.command(shelf.package, shelf.request)
    environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [program], input=ASKED, capture_output=True, timeout=60, check=True, env=environ
    )
    assert b'"version":"1.0.0"' in done.stdout.replace(b" ", b"")
    assert index.requests == []
    assert shelf.store.find_changes(shelf.package) == []
    assert shelf.store.find_changes(shelf.package, reads_all=True) == []


def test_a_request_is_resolved_once_and_then_remembered(shelf: Shelf) -> None:
    shelf.publish("1.1.0")
    assert shelf.store.find(shelf.request) == shelf.package
    later = asyncio.run(shelf.store.resolve(shelf.request))
    assert (shelf.package.version, later.version) == ("1.0.0", "1.1.0")
    assert later.digest != shelf.package.digest
    assert shelf.store.find(shelf.request) == later


def test_the_digest_is_the_same_on_another_machine(shelf: Shelf, tmp_path: Path) -> None:
    """The resolution has no path and no address, and is installed again from itself."""
    other = PackageStore(tmp_path / "elsewhere" / "packages")
    found = asyncio.run(other.resolve(shelf.request))
    assert found == shelf.package
    assert "127.0.0.1" not in found.resolution
    assert str(tmp_path) not in found.resolution
    shelf.publish("1.1.0")
    asyncio.run(other.install(shelf.package))
    assert other.find_changes(shelf.package) == []


def test_installing_runs_no_script_of_a_package(shelf: Shelf) -> None:
    assert not Path("/tmp/comity-test-install-script-ran").exists()


def change(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"name", b"NAME", 1) + b"\n//")


def change_without_traces(path: Path) -> None:
    """The same size and modification time; only the change time tells."""
    about = path.stat()
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"name", b"NAME", 1))
    path.chmod(about.st_mode)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def plant_link(path: Path) -> None:
    path.parent.chmod(0o700)
    path.unlink()
    path.symlink_to("/etc/passwd")


def plant_pipe(path: Path) -> None:
    path.parent.chmod(0o700)
    path.unlink()
    os.mkfifo(path)


def plant_module(path: Path) -> None:
    path.parent.chmod(0o700)
    (path.parent / "sitecustomize.py").write_text("print('evil')")


def plant_folder_link(path: Path) -> None:
    path.parent.chmod(0o700)
    (path.parent / "node_modules").symlink_to("/tmp")


def remove(path: Path) -> None:
    path.parent.chmod(0o700)
    path.unlink()


def loosen(path: Path) -> None:
    path.chmod(0o777)


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        (change, "was changed"),
        (change_without_traces, "was changed"),
        (plant_link, "was changed"),
        (plant_pipe, "was changed"),
        (plant_module, "sitecustomize.py was added"),
        (plant_folder_link, "node_modules was added"),
        (remove, "is missing"),
        (loosen, "was changed"),
    ],
)
@pytest.mark.parametrize("shelf", ["npm"], indirect=True)
def test_a_file_that_was_tampered_with_is_found(
    shelf: Shelf, attack: Callable[[Path], None], told: str
) -> None:
    attack(shelf.find("main.js"))
    for reads_all in (False, True):
        (found,) = shelf.store.find_changes(shelf.package, reads_all=reads_all)
        assert found.endswith(told)
    asyncio.run(shelf.store.reinstall(shelf.package))
    assert shelf.store.find_changes(shelf.package, reads_all=True) == []


def test_a_linked_interpreter_that_was_replaced_is_found(shelf: Shelf) -> None:
    link = next(each for each in shelf.files.rglob("*") if each.is_symlink())
    link.parent.chmod(0o700)
    link.unlink()
    link.symlink_to("/bin/sh")
    (found,) = shelf.store.find_changes(shelf.package)
    assert found.endswith("was changed")


def test_restored_files_with_other_times_are_accepted_by_their_content(shelf: Shelf) -> None:
    file = next(each for each in shelf.files.rglob("*") if each.is_file())
    os.utime(file)
    assert shelf.store.find_changes(shelf.package) == []


def test_a_folder_that_is_replaced_by_a_link_is_found(shelf: Shelf, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(shelf.files.parent, moved, symlinks=True)
    shelf.files.parent.rename(tmp_path / "aside")
    shelf.files.parent.symlink_to(moved)
    (found,) = shelf.store.find_changes(shelf.package)
    assert "is no folder of this user" in found


def test_the_record_of_another_package_is_refused(shelf: Shelf) -> None:
    shelf.publish("1.1.0")
    later = asyncio.run(shelf.store.resolve(shelf.request))
    asyncio.run(shelf.store.install(later))
    other = shelf.store.folder / later.digest.removeprefix("sha256:") / "record.json"
    other.write_bytes((shelf.files.parent / "record.json").read_bytes())
    (found,) = shelf.store.find_changes(later)
    assert "belongs to another package" in found


def test_a_download_that_differs_from_its_checksum_is_not_installed(
    shelf: Shelf, index: NpmIndex, tmp_path: Path
) -> None:
    other = replace(shelf.package, resolution=shelf.package.resolution.replace("sha", "sHa"))
    with pytest.raises(Misconfigured, match="someone changed it"):
        asyncio.run(PackageStore(tmp_path / "other").install(other))
    tampered = _with_other_checksum(shelf.package)
    with pytest.raises(Unavailable, match="failed"):
        asyncio.run(PackageStore(tmp_path / "other").install(tampered))
    assert [each for each in (tmp_path / "other").iterdir() if each.is_dir()] == []


def _with_other_checksum(package: LockedPackage) -> LockedPackage:
    text = package.resolution
    for mark in ("sha512-", "--hash=sha256:"):
        begin = text.find(mark) + len(mark)
        if begin >= len(mark):
            other = "0" if text[begin] != "0" else "1"
            text = text[:begin] + other + text[begin + 1 :]
    return replace(package, resolution=text, digest=resolution_digest(text))


def test_a_package_that_the_index_does_not_have_is_an_error_without_passwords(
    shelf: Shelf, index: NpmIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"http://person:S3CRET@127.0.0.1:{index.port}/"
    monkeypatch.setenv("npm_config_registry", address)
    for line in ("npx -y greeter-nothing", "uvx greeter-nothing"):
        with pytest.raises(Unavailable) as refused:
            asyncio.run(shelf.store.resolve(asked(line)))
        assert "greeter-nothing" in str(refused.value)
        assert "S3CRET" not in str(refused.value)
    assert [each for each in shelf.store.folder.iterdir() if each.name.startswith(".new")] == []
