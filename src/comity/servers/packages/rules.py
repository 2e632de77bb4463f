"""Reads which package a command line runs, and compares a server with its lock entry."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from comity.errors import Misconfigured
from comity.servers.packages.model import (
    NOT_LOCKED,
    EntryDifference,
    LockedServer,
    PackageRequest,
    WrittenEntry,
)

_NPM: Final = re.compile(
    r"((?:@[A-Za-z0-9_~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9_~-][A-Za-z0-9._~-]*)"
    r"(?:@([A-Za-z0-9.^~<>=*|+ -]{1,128}))?"
)
_PYPI: Final = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)((?:\[[A-Za-z0-9._, -]+\])?)"
    r"(?:@([A-Za-z0-9.+!_-]{1,128})|((?:[=<>!~]=?=?[A-Za-z0-9.*+!_, <>=~-]{1,128})?))"
)
_PROGRAM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_PYTHON: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@-]{0,31}")
_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9_@%+=:,./${}-]+")
_PARTS: Final = {
    "command": "command",
    "args": "arguments",
    "cwd": "working directory",
    "env": "environment names",
    "url": "URL",
    "headers": "header names",
}


@dataclass(slots=True)
class _RunnerOptions:
    """The options of a runner, and the words behind them."""

    values: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    words: list[str] = field(default_factory=list[str])


def read_command(argv: Sequence[str]) -> PackageRequest | None:
    """Return the package that a command line runs; None if it starts a program of this machine.

    Raises Misconfigured for options, paths and addresses that the package store does not support.
    """
    runner, words = argv[0].replace("\\", "/").rpartition("/")[2], list(argv[1:])
    if runner in ("npx", "bunx"):
        return _read_npm(runner, words)
    if runner == "pnpm" and words[:1] == ["dlx"]:
        return _read_npm("pnpm dlx", words[1:])
    if runner == "uvx":
        return _read_pypi(runner, words)
    if runner == "uv" and words[:2] == ["tool", "run"]:
        return _read_pypi("uv tool run", words[2:])
    return None


def _read_npm(runner: str, words: list[str]) -> PackageRequest:
    flags = frozenset({"-y", "--yes", "-q", "--quiet"})
    found = _read_options(runner, words, flags, {"-p": "--package", "--package": "--package"})
    packages = found.values.get("--package", [])
    program = ""
    if packages:
        program = _checked(_PROGRAM, _first(runner, found), "a program")[0]
    else:
        packages = [_first(runner, found)]
    name = _checked(_NPM, packages[0], "a package of the index")[1]
    for package in packages:
        _checked(_NPM, package, "a package of the index")
    return PackageRequest("npm", name, tuple(packages), program, tuple(found.words[1:]))


def _read_pypi(runner: str, words: list[str]) -> PackageRequest:
    takes_value = {"--from": "--from", "--with": "--with", "--python": "--python", "-p": "--python"}
    found = _read_options(runner, words, frozenset({"-q", "--quiet"}), takes_value)
    first = _first(runner, found)
    source = found.values.get("--from", [first])[-1]
    name = _checked(_PYPI, source, "a package of the index")[1]
    program = first if "--from" in found.values else name
    requirements = [source, *found.values.get("--with", [])]
    python = found.values.get("--python", [""])[-1]
    if python:
        _checked(_PYTHON, python, "a version of Python")
    return PackageRequest(
        "pypi",
        normalized_name(name),
        tuple(map(_python_requirement, requirements)),
        _checked(_PROGRAM, program, "a program")[0],
        tuple(found.words[1:]),
        python,
    )


def _python_requirement(text: str) -> str:
    found = _checked(_PYPI, text, "a package of the index")
    name, extras, version, specifier = found[1], found[2], found[3], found[4] or ""
    if version and version != "latest":
        specifier = f"=={version}"
    return f"{name}{extras}{specifier}"


def is_program_name(text: str) -> bool:
    return _PROGRAM.fullmatch(text) is not None


def normalized_name(name: str) -> str:
    """Return the name of a Python package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_options(
    runner: str, words: list[str], flags: frozenset[str], takes_value: Mapping[str, str]
) -> _RunnerOptions:
    found, rest = _RunnerOptions(), list(words)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--" and not equals:
            break
        if option in flags and not equals:
            continue
        if option not in takes_value or not (equals or rest):
            raise Misconfigured(f"the package store does not support {runner} {option:.80}")
        found.values.setdefault(takes_value[option], []).append(value if equals else rest.pop(0))
    found.words = rest
    return found


def _first(runner: str, found: _RunnerOptions) -> str:
    if not found.words:
        raise Misconfigured(f"{runner} names no package")
    return found.words[0]


def _checked(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise Misconfigured(f"the package store supports no path and no address: {what} is needed")
    return match


def written_origin(url: str) -> str:
    """Return the scheme, host and port of a URL as written, without credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}" if place else ""


def resolution_digest(resolution: str) -> str:
    return f"sha256:{hashlib.sha256(resolution.encode()).hexdigest()}"


def list_entry_differences(locked: WrittenEntry, entry: WrittenEntry) -> list[EntryDifference]:
    """Return how an entry of the configuration differs from the approved one."""
    return [
        EntryDifference(part, _shown(getattr(locked, name)), _shown(getattr(entry, name)))
        for name, part in _PARTS.items()
        if getattr(locked, name) != getattr(entry, name)
    ]


def _shown(value: str | tuple[str, ...]) -> str:
    words = (value,) if isinstance(value, str) else value
    return " ".join(word if _PLAIN_WORD.fullmatch(word) else repr(word) for word in words if word)


def start_problem(locked: LockedServer | None, entry: WrittenEntry, id: str) -> str:
    """Return why a server may not start with this lock entry; empty if it may."""
    if locked is None:
        return ""
    accept = f"`comity servers update {id}` shows it and asks whether to accept it"
    if locked == NOT_LOCKED:
        return f"it is not in comity.lock; {accept}"
    parts = [each.part for each in list_entry_differences(locked.entry, entry)]
    if parts:
        return f"it differs from comity.lock in: {', '.join(parts)}; {accept}"
    return ""


def tool_differences(
    locked: Mapping[str, str] | None, digests: Mapping[str, str]
) -> list[EntryDifference]:
    """Return the tools that were added, changed and removed since they were approved."""
    known = locked or {}
    return [
        EntryDifference(f"tool {name}", known.get(name, "")[:12], digests.get(name, "")[:12])
        for name in sorted({*known, *digests})
        if known.get(name) != digests.get(name)
    ]
