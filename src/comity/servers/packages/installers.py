"""Resolves packages with npm and uv, and installs them without running any of their code."""

import asyncio
import json
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, cast

from comity.errors import Misconfigured, Unavailable
from comity.servers.packages.model import LockedPackage, PackageIndex, PackageRequest
from comity.servers.packages.rules import normalized_name, resolution_digest
from comity.servers.process.stderr import sanitize_line

INSTALL_TIMEOUT: Final = timedelta(minutes=10)
MAX_RESOLUTION_BYTES: Final = 8 * 1024 * 1024
MAX_ERROR_LINES: Final = 3
_CREDENTIALS: Final = re.compile(r"//[^/\s@]+@")
_OWN_VARIABLES: Final = ("COMITY_", "VIRTUAL_ENV", "PYTHON", "NODE_OPTIONS")


class PackageInstaller(Protocol):
    """Resolves and installs the packages of one index."""

    async def resolve(self, request: PackageRequest, folder: Path) -> LockedPackage: ...
    async def install(self, package: LockedPackage, folder: Path) -> None: ...
    def programs(self, folder: Path) -> Path: ...
    def version(self, package: LockedPackage) -> str:
        """Return the version of a package in its resolution; empty if it is not there."""
        ...

    def default_program(self, package: LockedPackage) -> str: ...
    def interpreter(self, program: Path) -> tuple[str, ...]: ...


class NpmInstaller:
    """Uses npm. A resolution is a `package-lock.json` without addresses."""

    async def resolve(self, request: PackageRequest, folder: Path) -> LockedPackage:
        (folder / "package.json").write_text(json.dumps({"name": "server", "private": True}))
        await run_tool(
            [
                *("npm", "install", "--package-lock-only", "--omit-lockfile-registry-resolved"),
                *("--ignore-scripts", "--no-audit", "--no-fund", "--save-exact", "--"),
                *request.requirements,
            ],
            folder,
        )
        written = json.loads((folder / "package-lock.json").read_bytes())
        for entry in written["packages"].values():
            for unneeded in ("funding", "license", "deprecated"):
                entry.pop(unneeded, None)
        resolution = json.dumps(written, indent=1, sort_keys=True, ensure_ascii=True) + "\n"
        entries = npm_entries(resolution)
        version = str(entries[f"node_modules/{request.name}"]["version"])
        digest = resolution_digest(resolution)
        return LockedPackage("npm", request.name, version, digest, resolution)

    async def install(self, package: LockedPackage, folder: Path) -> None:
        wanted = npm_entries(package.resolution)[""].get("dependencies", {})
        manifest = {"name": "server", "private": True, "dependencies": wanted}
        (folder / "package.json").write_text(json.dumps(manifest))
        (folder / "package-lock.json").write_text(package.resolution)
        await run_tool(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)

    def programs(self, folder: Path) -> Path:
        return folder / "node_modules" / ".bin"

    def version(self, package: LockedPackage) -> str:
        return str(_npm_entry(package).get("version", ""))

    def default_program(self, package: LockedPackage) -> str:
        """Return the program that `npx` would run: the only one, or the one with this name."""
        programs: object = _npm_entry(package).get("bin", {})
        short = package.name.rpartition("/")[2]
        named = cast("dict[str, object]", programs) if isinstance(programs, dict) else ()
        names = [short] if isinstance(programs, str) else list(named)
        if len(names) == 1:
            return names[0]
        if short in names:
            return short
        raise Misconfigured(
            f"{package.name} has no single program; name one with `npx --package {package.name}`"
        )

    def interpreter(self, program: Path) -> tuple[str, ...]:
        """Return nothing: the first line of the program names it."""
        return ()


def _npm_entry(package: LockedPackage) -> Mapping[str, Any]:
    return npm_entries(package.resolution).get(f"node_modules/{package.name}", {})


def npm_entries(resolution: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the entries of a resolution by their folders.

    Raises Misconfigured if npm would take one of them from an address, or without a checksum.
    """
    try:
        found = json.loads(resolution)["packages"]
        problems = [where for where, entry in found.items() if where and _is_unpinned(where, entry)]
        is_valid = not problems and isinstance(found[""], dict)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Misconfigured("the resolution of a package of npm cannot be read") from None
    if not is_valid:
        raise Misconfigured(
            f"{', '.join(problems)[:300]} has no checksum; "
            'set packages = "as_written" to run this server without the store'
        )
    return found


def _is_unpinned(where: str, entry: Mapping[str, Any]) -> bool:
    is_placed = re.fullmatch(r"node_modules/[A-Za-z0-9@._~/-]+", where) and ".." not in where
    is_version = re.fullmatch(r"[0-9][0-9A-Za-z.+-]*", entry["version"])
    has_checksum = entry.get("inBundle") is True or re.fullmatch(
        r"sha(?:256|384|512)-[A-Za-z0-9+/]+={0,2}", entry.get("integrity", "")
    )
    return not (is_placed and is_version and has_checksum) or "resolved" in entry or "link" in entry


class UvInstaller:
    """Uses uv. A resolution is a list of requirements with the checksum of each file."""

    async def resolve(self, request: PackageRequest, folder: Path) -> LockedPackage:
        (folder / "requirements.in").write_text("\n".join(request.requirements) + "\n")
        # `uv venv` takes no Python of a virtual environment, so the resolution must not be for one.
        python = ["--python", request.python] if request.python else ["--system"]
        await run_tool(
            [
                *("uv", "pip", "compile", "--quiet", "--generate-hashes", "--universal"),
                *("--no-emit-index-url", "--no-header", "--no-annotate", "--no-build", *python),
                *("requirements.in", "--output-file", "requirements.txt"),
            ],
            folder,
        )
        # The version of Python is a part of what was approved.
        first = f"# python {request.python}\n" if request.python else ""
        resolution = first + (folder / "requirements.txt").read_text("utf-8")
        versions = python_versions(resolution)
        version, digest = versions[request.name], resolution_digest(resolution)
        return LockedPackage("pypi", request.name, version, digest, resolution)

    async def install(self, package: LockedPackage, folder: Path) -> None:
        python_versions(package.resolution)
        (folder / "requirements.txt").write_text(package.resolution)
        wanted = _PYTHON_LINE.match(package.resolution)
        python = ["--python", wanted[1]] if wanted else []
        await run_tool(["uv", "venv", "--quiet", "--relocatable", *python, "venv"], folder)
        await run_tool(
            [
                *("uv", "pip", "install", "--quiet", "--python", "venv/bin/python"),
                # A hard link would share the file with uv's cache, which others write to.
                *("--link-mode", "copy", "--compile-bytecode", "--no-build", "--no-deps"),
                *("--require-hashes", "--requirements", "requirements.txt"),
            ],
            folder,
        )

    def programs(self, folder: Path) -> Path:
        return folder / "venv" / "bin"

    def version(self, package: LockedPackage) -> str:
        return python_versions(package.resolution).get(package.name, "")

    def default_program(self, package: LockedPackage) -> str:
        return package.name

    def interpreter(self, program: Path) -> tuple[str, ...]:
        """Return the Python of a script. Its own lines find it with programs of the system."""
        with program.open("rb") as opened:
            is_script = opened.read(2) == b"#!"
        return (str(program.with_name("python")),) if is_script else ()


_PYTHON_LINE: Final = re.compile(r"# python ([A-Za-z0-9][A-Za-z0-9.@-]{0,31})\n")
_REQUIREMENT: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[A-Za-z0-9._,-]+\])?==([A-Za-z0-9.+!_-]+)"
    r"(?: ; [A-Za-z0-9_ .<>=!~()'\",-]+)? \\"
)
_CHECKSUM: Final = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")


def python_versions(resolution: str) -> Mapping[str, str]:
    """Return the version of each package of a resolution.

    Raises Misconfigured for a line that is neither an exact version nor a checksum: requirements
    may name other files, addresses and options.
    """
    versions: dict[str, str] = {}
    for line in _PYTHON_LINE.sub("", resolution, count=1).splitlines():
        requirement = _REQUIREMENT.fullmatch(line)
        if requirement is not None:
            versions[normalized_name(requirement[1])] = requirement[2]
        elif not versions or not _CHECKSUM.fullmatch(line):
            raise Misconfigured(
                "a requirement has no exact version with checksums; "
                'set packages = "as_written" to run this server without the store'
            )
    return versions


INSTALLERS: Final[Mapping[PackageIndex, PackageInstaller]] = {
    "npm": NpmInstaller(),
    "pypi": UvInstaller(),
}


async def run_tool(argv: Sequence[str], folder: Path) -> None:
    """Run npm or uv in a folder of the store. Raises Unavailable with its first lines.

    The folder of the user may hold files that configure these programs, so it is not used.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        # An active environment would choose another Python.
        if not name.startswith(_OWN_VARIABLES)
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=folder,
            env=environ,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as problem:
        why = f"{argv[0]} cannot be started ({problem.strerror}); install it, or check PATH"
        raise Unavailable(why) from None
    try:
        async with asyncio.timeout(INSTALL_TIMEOUT.total_seconds()):
            said, _ = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"{argv[0]} took longer than {INSTALL_TIMEOUT}") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise Unavailable(f"{argv[0]} failed: {_first_lines(said)}")


def _first_lines(said: bytes) -> str:
    """Return the first lines of an error, without warnings. Advice comes after them."""
    lines = said[:20_000].decode("utf-8", "replace").splitlines()
    # The address of an index may hold a password.
    clean = [_CREDENTIALS.sub("//", sanitize_line(line)).strip() for line in lines]
    told = [line for line in clean if line and not line.startswith(("npm warn", "npm notice"))]
    return " | ".join(told[:MAX_ERROR_LINES]) or "it said nothing"
