"""Packages of the store, and entries of comity.lock, that are exchanged before a server starts."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from comity.errors import Misconfigured, Unavailable
from comity.servers.packages.launcher import ServerLauncher
from comity.servers.packages.lock_file import parse_lock, render_lock
from comity.servers.packages.model import LockedPackage, LockedServer, WrittenEntry
from comity.servers.packages.package_store import PackageStore
from comity.servers.packages.rules import read_command, resolution_digest
from comity.servers.process.process import ServerCommand
from comity.toolkit.folders import remove_folder
from tests.cli.program import Desk
from tests.servers.packages.local_index import (
    NpmIndex,
    npm_environment,
    npm_index,
    uv_environment,
    write_wheel,
)
from tests.servers.packages.test_update import NODE, PYTHON, Bench, Entry

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed"),
    pytest.mark.skipif(not shutil.which("uv"), reason="uv is not installed"),
]
WORDS: Entry = {**NODE, "id": "words", "args": ["-y", "greeting-words"]}
ENTRIES: dict[str, Entry] = {"node": NODE, "py": PYTHON, "words": WORDS}
MODULE = Path("files/node_modules/greeting-words")
PROGRAM = Path("files/node_modules/greeter-mcp/main.js")


@pytest.fixture(scope="module")
def index() -> Iterator[NpmIndex]:
    with npm_index() as index:
        yield index


@pytest.fixture
def bench(index: NpmIndex, tmp_path: Path) -> Bench:
    wheels = tmp_path / "wheels"
    environ = npm_environment(index, tmp_path) | uv_environment(wheels, tmp_path)
    desk = Desk(tmp_path, **environ, COMITY_STATE_DIR=str(tmp_path / "state"))
    index.manifests.clear()
    index.publish_greeter("1.0.0")
    write_wheel(wheels, "1.0.0")
    return Bench(desk, index, wheels)


@dataclass(frozen=True)
class Swap:
    """The folder of an approved package, and of a newer one that nobody approved."""

    approved: Path
    other: Path

    def put(self, place: Path) -> None:
        """Put a part of the other package in the place of the approved one."""
        _move_aside(self.approved / place)
        found = self.other / place
        (shutil.copytree if found.is_dir() else shutil.copy2)(found, self.approved / place)

    def link(self, place: Path) -> None:
        _move_aside(self.approved / place)
        (self.approved / place).symlink_to(self.other / place)


def _move_aside(place: Path) -> None:
    for folder in (place.parent, place):
        folder.chmod(0o700)
    # Nothing is added to a folder of the package, so only the exchange itself can be found.
    place.rename(place.parents[len(place.parts) - place.parts.index("packages") - 2] / "aside")


SWAPS: dict[str, tuple[Callable[[Swap], None], str]] = {
    "package": (lambda swap: swap.put(Path()), "belongs to another package"),
    "files": (lambda swap: swap.put(Path("files")), "in the package store have changed"),
    "module": (lambda swap: swap.put(MODULE), "in the package store have changed"),
    "program": (lambda swap: swap.put(PROGRAM), "in the package store have changed"),
    "link to a package": (lambda swap: swap.link(Path()), "is no folder of this user"),
    "link to files": (lambda swap: swap.link(Path("files")), "is no folder of this user"),
    "link to a module": (lambda swap: swap.link(MODULE), "in the package store have changed"),
    "link to a program": (lambda swap: swap.link(PROGRAM), "in the package store have changed"),
}


def test_a_store_that_was_swapped_before_a_start_starts_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    bench.configure(NODE)
    bench.update("--yes", "--no-start")
    lock = bench.lock.read_bytes()
    approved = package_of(bench, "node")
    bench.index.publish_greeter("2.0.0")
    bench.update("--yes", "--no-start")
    swap = Swap(folder_of(bench, approved), folder_of(bench, package_of(bench, "node")))
    bench.lock.write_bytes(lock)
    kept = tmp_path / "kept"
    shutil.copytree(bench.packages, kept, symlinks=True)
    assert start(bench, "node", approved) == ""
    for name, (exchange, told) in SWAPS.items():
        exchange(swap)
        assert told in start(bench, "node", approved), name
        remove_folder(bench.packages)
        shutil.copytree(kept, bench.packages, symlinks=True)


def package_of(bench: Bench, server: str) -> LockedPackage:
    package = parse_lock(bench.lock, bench.lock.read_bytes())[server].package
    assert package is not None
    return package


def folder_of(bench: Bench, package: LockedPackage) -> Path:
    return bench.packages / package.digest.removeprefix("sha256:")


def start(bench: Bench, server: str, package: LockedPackage) -> str:
    """Prepare a start with this package in the lock. Return why it is refused, or nothing."""
    entry = ENTRIES[server]
    command = ServerCommand((entry["command"], *entry["args"]), {})
    written, store = WrittenEntry(), PackageStore(bench.packages)
    lock = LockedServer(written, package)
    try:
        asyncio.run(ServerLauncher(server, command, written, lock=lock, store=store).prepare())
    except Unavailable as refusal:
        return str(refusal)
    return ""


def swap_entry(bench: Bench, server: str, package: LockedPackage) -> None:
    locked = parse_lock(bench.lock, bench.lock.read_bytes())
    locked[server] = replace(locked[server], package=package)
    bench.lock.write_text(render_lock(locked))


TOLD = (
    "comity.lock has the package",
    "is not in its resolution",
    "cannot be read",
    "no exact version",
)


def test_an_entry_of_the_lock_that_has_another_package_starts_nothing(bench: Bench) -> None:
    """The package of another server is refused, as it is and under the name of its own."""
    bench.configure(*ENTRIES.values())
    bench.update("--yes", "--no-start")
    own = {each: package_of(bench, each) for each in ENTRIES}
    assert [start(bench, each, own[each]) for each in ("node", "py")] == ["", ""]
    swaps = (("node", "words"), ("node", "py"), ("py", "node"), ("py", "words"))
    for server, source in swaps:
        renamed = replace(own[source], name=own[server].name)
        both = replace(renamed, index=own[server].index)
        for package in (own[source], renamed, both):
            assert any(each in start(bench, server, package) for each in TOLD), package
    swap_entry(bench, "node", replace(own["words"], name=own["node"].name))
    with bench.served() as show:
        assert "is not in its resolution" in show("node")["reason"]
    bench.update("--yes", "--no-start")
    with bench.served() as show:
        assert show("node")["state"] == "connected"


@pytest.mark.parametrize(
    "programs",
    [
        {"../../../../../../../../../../../bin/sh": "x"},
        {"/bin/sh": "x"},
        {"..": "x"},
        {"": "x"},
        {"-c": "x"},
        {},
        {"a": "x", "b": "x"},
        ["greeter-mcp"],
        7,
        None,
    ],
    ids=str,
)
def test_a_resolution_names_no_program_outside_its_package(
    tmp_path: Path, programs: object
) -> None:
    entry = {"version": "1.0.0", "integrity": "sha512-AAAA", "bin": programs}
    text = json.dumps({"packages": {"": {}, "node_modules/greeter-mcp": entry}})
    package = LockedPackage("npm", "greeter-mcp", "1.0.0", resolution_digest(text), text)
    store = PackageStore(tmp_path)
    folder = tmp_path / package.digest.removeprefix("sha256:") / "files/node_modules/.bin"
    folder.mkdir(parents=True)
    request = read_command(("npx", "-y", "greeter-mcp"))
    assert request is not None
    with pytest.raises(Misconfigured, match="program"):
        store.command(package, request)
