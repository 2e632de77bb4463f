"""Proposes the permissions of a server from its command, its variables and its package.

The file of a client is untrusted. A person sees each proposal, and Comity writes exactly what the
person saw: full paths, hosts and programs, without variables and without invisible characters.
"""

import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final, cast
from urllib.parse import urlsplit

from comity.clients.server_import import is_runner
from comity.errors import MalformedMessage, Misconfigured
from comity.servers.packages.rules import normalized_name, read_command
from comity.servers.sandbox.egress_rules import ANY_HOST
from comity.servers.sandbox.model import EXECUTE, REACH_NETWORK, READ_FILES, WRITE_FILES
from comity.servers.sandbox.programs import SCRIPT_SUFFIXES
from comity.servers.sandbox.reach import (
    ANY_PROGRAM,
    own_files_problem,
    read_reach,
    write_problem,
)
from comity.toolkit.text import has_hidden, object_members

MAX_PLACES: Final = 20
MAX_PLACE_LENGTH: Final = 300

_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_WEB_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class PackageNeeds:
    """The permissions that a known package needs.

    `options` and `variables` name files or folders, and with `takes_folders` all other arguments
    do. `shared_folders` are folders of the home that it reads if they exist. `missing_note` is for
    an entry that names no file or folder.
    """

    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    takes_folders: bool = False
    hosts: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    shared_folders: tuple[str, ...] = ()
    note: str = ""
    missing_note: str = ""


_BROWSER_NOTE: Final = (
    "its browser cannot start a sandbox of its own inside of this one; it needs the option "
    "--no-sandbox"
)
NEEDS_BY_PACKAGE: Final[Mapping[str, PackageNeeds]] = {
    "@modelcontextprotocol/server-everything": PackageNeeds(),
    "@modelcontextprotocol/server-filesystem": PackageNeeds(takes_folders=True),
    "@modelcontextprotocol/server-memory": PackageNeeds(
        variables=("MEMORY_FILE_PATH",),
        missing_note="it cannot keep its notes; name a file with MEMORY_FILE_PATH in its env",
    ),
    "@modelcontextprotocol/server-postgres": PackageNeeds(
        note="it reaches its database without the proxy of the sandbox, which is refused; "
        'set sandbox = "none" in its entry if you trust it'
    ),
    "@modelcontextprotocol/server-puppeteer": PackageNeeds(
        hosts=(ANY_HOST,),
        programs=(ANY_PROGRAM,),
        shared_folders=(".cache/puppeteer",),
        note=_BROWSER_NOTE,
    ),
    "@modelcontextprotocol/server-sequential-thinking": PackageNeeds(),
    "@playwright/mcp": PackageNeeds(
        hosts=(ANY_HOST,),
        programs=(ANY_PROGRAM,),
        shared_folders=(".cache/ms-playwright",),
        note=_BROWSER_NOTE,
    ),
    "mcp-server-fetch": PackageNeeds(hosts=(ANY_HOST,)),
    "mcp-server-git": PackageNeeds(
        options=("--repository", "-r"),
        programs=("git",),
        missing_note="it can open no repository; name one with --repository",
    ),
    "mcp-server-sqlite": PackageNeeds(options=("--db-path",)),
    "mcp-server-time": PackageNeeds(),
}


@dataclass(slots=True)
class AccessProposal:
    """The access that a server should get. `missing_folders` do not exist yet.

    With `runs_unconfined` it runs another program that no sandbox can hold.
    """

    permissions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    notes: list[str] = field(default_factory=list[str])
    missing_folders: list[str] = field(default_factory=list[str])
    runs_unconfined: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.permissions and not self.runs_unconfined

    def add(self, permission: str, place: str) -> None:
        places = self.permissions.setdefault(permission, [])
        if place not in places:
            places.append(place)

    def applied_to(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry with what is proposed."""
        if self.runs_unconfined:
            return {**entry, "sandbox": "none"}
        return {
            **entry,
            **({"policy": {"permissions": self.permissions}} if self.permissions else {}),
        }

    def describe(self) -> list[str]:
        """Return what the server would get, one thing on each line and with nothing left out."""
        if self.runs_unconfined:
            return ["run without a sandbox, with all rights of your user"]
        writable = self.permissions.get(WRITE_FILES, [])
        readable = [each for each in self.permissions.get(READ_FILES, []) if each not in writable]
        lines = [f"read and write {self._shown_folder(each)}" for each in writable]
        lines += [f"read {self._shown_folder(each)}" for each in readable]
        for host in self.permissions.get(REACH_NETWORK, []):
            lines.append("reach every public host" if host == ANY_HOST else f"reach {host}")
        for program in self.permissions.get(EXECUTE, []):
            is_any = program == ANY_PROGRAM
            lines.append("execute all programs" if is_any else f"execute {program}")
        return lines

    def make_folders(self) -> None:
        """Make the folders that do not exist yet: a sandbox shows no others."""
        for folder in self.missing_folders:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)

    def _shown_folder(self, place: str) -> str:
        if place in self.missing_folders:
            return f"{place} (a new folder)"
        real = str(Path(place).resolve())
        # A person agrees to the place behind the link, so its path is shown whole.
        return place if real == place else f"{place} (a link to {_without_controls(real)})"

    def commands(self, server: str) -> list[str]:
        """Return the commands that grant the same while a gateway runs."""
        if self.runs_unconfined:
            return []
        writable = self.permissions.get(WRITE_FILES, [])
        # A sandbox shows only folders that exist when it starts.
        found = [shlex.join(("mkdir", "-p", each)) for each in self.missing_folders]
        for permission, places in self.permissions.items():
            # A folder for writing can be read too.
            own = [each for each in places if permission != READ_FILES or each not in writable]
            reach = [word for place in own for word in ("--reach", place)]
            words = ("comity", "servers", "permissions", "approve", server, permission, *reach)
            if own:
                found.append(shlex.join(words))
        return found


@dataclass(frozen=True, slots=True)
class ProposalContext:
    """The machine of a proposal. `own_files` are configuration files that no server may change."""

    home: Path
    folder: Path
    environ: Mapping[str, str]
    own_files: tuple[Path, ...]


def propose_permissions(entry: Mapping[str, Any], context: ProposalContext) -> AccessProposal:
    """Return the permissions that the server of an entry needs, as far as its entry shows them."""
    proposal = AccessProposal()
    if "command" not in entry:
        return proposal
    if is_runner(dict(entry)):
        proposal.runs_unconfined = True
        return proposal
    words = [str(word) for word in _items(entry.get("args"))]
    package, arguments = _package_of(str(entry["command"]), words)
    variables = {name: str(each) for name, each in object_members(entry.get("env")).items()}
    finder = _PlaceFinder(proposal, context, entry)
    needs = NEEDS_BY_PACKAGE.get(package)
    if needs is None:
        finder.add_unknown(arguments, variables)
    else:
        finder.add_known(needs, arguments, variables)
    return proposal


def _package_of(command: str, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the package that a command line runs, and the arguments of its program."""
    try:
        request = read_command((command, *words))
    except Misconfigured:
        return "", words
    if request is not None:
        return request.name, request.args
    if "-m" in words[:-1]:
        at = words.index("-m") + 1
        return normalized_name(words[at]), words[at + 1 :]
    return normalized_name(PurePath(command).name), words


class _PlaceFinder:
    """Finds the folders and hosts that the words of one entry name."""

    def __init__(
        self, proposal: AccessProposal, context: ProposalContext, entry: Mapping[str, Any]
    ) -> None:
        self._proposal = proposal
        self._context = context
        cwd = self._resolved(str(entry.get("cwd") or "."), context.folder)
        self._folder = context.folder if cwd is None else cwd
        self._has_folder = bool(entry.get("cwd"))

    def add_known(
        self, needs: PackageNeeds, arguments: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        named = [*_option_values(arguments, needs.options)]
        named += [variables[name] for name in needs.variables if variables.get(name)]
        for word in named:
            self._add_place(word, creates=True)
        folders = [word for word in arguments if needs.takes_folders and word[:1] != "-"]
        for word in folders:
            self._add_place(word, opens_home=True)
        if needs.missing_note and not named and not folders:
            self._proposal.notes.append(needs.missing_note)
        self._add_shared(needs)

    def _add_shared(self, needs: PackageNeeds) -> None:
        for folder in needs.shared_folders:
            place = self._context.home / folder
            if place.is_dir():
                self._proposal.add(READ_FILES, str(place))
        for host in needs.hosts:
            self._proposal.add(REACH_NETWORK, host)
        for program in needs.programs:
            self._add_program(program)
        if needs.note:
            self._proposal.notes.append(needs.note)

    def add_unknown(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        """Add what the words show. A server without a named host gets every public one."""
        words = [part for word in (*arguments, *variables.values()) for part in _parts_of(word)]
        for word in words:
            if "://" in word:
                self._add_host(word)
            elif word.startswith(("/", "~/", "./", "../")) or word in (".", ".."):
                self._add_place(word)
        if self._has_folder:
            self._add_place(str(self._folder))
        if REACH_NETWORK not in self._proposal.permissions:
            self._proposal.add(REACH_NETWORK, ANY_HOST)

    def _add_program(self, program: str) -> None:
        path = program if program == ANY_PROGRAM else shutil.which(program, path=os.defpath)
        path = path or shutil.which(program, path=self._context.environ.get("PATH"))
        if path is None:
            self._proposal.notes.append(f"it needs {program}, which is not installed")
        else:
            # A folder of programs may be a link to another one.
            real = path if path == ANY_PROGRAM else str(Path(path).parent.resolve() / program)
            self._proposal.add(EXECUTE, real)

    def _add_host(self, word: str) -> None:
        text = self._expanded(word)
        try:
            parts = urlsplit(text or "")
            host, port = parts.hostname or "", parts.port or _WEB_PORTS.get(parts.scheme, 0)
        except ValueError:
            return
        if not host:
            return
        if parts.scheme not in _WEB_PORTS:
            self._proposal.notes.append(
                f"it names a {_printable(parts.scheme)} address, and the proxy of the sandbox "
                "serves only programs that use an HTTP proxy"
            )
            return
        try:
            # A host is never a pattern here: only a person widens one.
            if "*" not in host and port:
                self._proposal.add(REACH_NETWORK, read_reach(REACH_NETWORK, (f"{host}:{port}",))[0])
        except MalformedMessage:
            self._proposal.notes.append("it names an address that cannot be granted")

    def _add_place(self, word: str, *, creates: bool = False, opens_home: bool = False) -> None:
        # SQLite's `:memory:` is no file.
        if word.startswith(":"):
            return
        place = self._resolved(word, self._folder)
        if place is None:
            self._proposal.notes.append(f"not proposed: {_printable(word)}")
            return
        folder, is_missing = self._folder_of(place, creates=creates)
        if folder is None:
            return
        problem = self._problem(folder)
        if problem is None:
            self._add_folder(folder, is_missing=is_missing)
        elif opens_home and self._context.home.resolve() == place.resolve():
            self._add_inner_folders(folder)
        else:
            self._proposal.notes.append(problem)

    def _add_folder(self, folder: Path, *, is_missing: bool = False) -> None:
        if len(self._proposal.permissions.get(WRITE_FILES, ())) >= MAX_PLACES:
            self._proposal.notes.append(f"more than {MAX_PLACES} folders are not proposed")
            return
        self._proposal.add(READ_FILES, str(folder))
        self._proposal.add(WRITE_FILES, str(folder))
        if is_missing:
            self._proposal.missing_folders.append(str(folder))

    def _add_inner_folders(self, home: Path) -> None:
        """Add the visible folders of the home. The others hold keys, and files of Comity."""
        inner = sorted(
            each
            for each in home.iterdir()
            if not each.name.startswith(".") and each.is_dir() and not each.is_symlink()
        )
        for folder in inner:
            if _is_clear(str(folder)) and self._problem(folder) is None:
                self._add_folder(folder)
        self._proposal.notes.append(
            f"{home} itself holds keys and files of Comity: only its visible folders are proposed, "
            "and no folder that you make later"
        )

    def _resolved(self, word: str, folder: Path) -> Path | None:
        """Return the full path that a word names; None if it cannot be shown as it is."""
        text = self._expanded(word)
        if text is None or len(text) > MAX_PLACE_LENGTH or "${" in text or not _is_clear(text):
            return None
        if text.startswith("~/"):
            text = str(self._context.home / text[2:])
        return Path(os.path.normpath(folder / text))

    def _expanded(self, word: str) -> str | None:
        """Return a word with the values of its variables; None if one of them has none."""
        has_all = True

        def value(match: re.Match[str]) -> str:
            nonlocal has_all
            known = self._context.environ.get(match[1]) or match[2] or ""
            # Without it the rest would name another place, such as the folder around it.
            has_all = has_all and bool(known)
            return known

        text = _VARIABLE.sub(value, word)
        return text if has_all else None

    def _folder_of(self, place: Path, *, creates: bool) -> tuple[Path | None, bool]:
        """Return the folder to grant for a place, and whether it is missing.

        A file needs its folder, because databases and editors create others beside it. A script is
        part of the program, which may always read it.
        """
        try:
            if place.is_dir():
                return place, False
            if place.is_file():
                is_program = place.suffix in SCRIPT_SUFFIXES or os.access(place, os.X_OK)
                return (None if is_program else place.parent), False
            # Words such as /sse name a path at a server, and no file of this machine.
            if place.parent.is_dir() and place.parent != Path("/"):
                return place.parent, False
        except OSError:
            return None, False
        if creates and self._context.home in place.parents:
            return place.parent, True
        return None, False

    def _problem(self, folder: Path) -> str | None:
        """Return why a folder is not proposed, or None."""
        if folder == Path("/tmp") or len(folder.parts) < 2:  # noqa: S108  # only compared
            return f"{folder} is not proposed, because other programs have files there"
        # The home holds the keys of other programs.
        if self._context.home.resolve().is_relative_to(folder.resolve()):
            return f"{folder} is not proposed, because it holds your keys; name a folder inside"
        problem = own_files_problem(str(folder))
        if problem is None:
            problem = write_problem(str(folder), self._context.own_files)
        return None if problem is None else f"not proposed: {problem}"


def _option_values(arguments: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """Yield the values of some options, in both forms."""
    for number, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in options and equals:
            yield value
        elif word in options and number + 1 < len(arguments):
            yield arguments[number + 1]


def _parts_of(word: str) -> Iterable[str]:
    """Return the paths or addresses in a word, such as `--option=PATH` or `PATH:PATH`."""
    if word.startswith("-"):
        word = word.partition("=")[2]
    parts = re.split(r"[:,]", word)
    return parts if all(each.startswith("/") for each in parts) else (word,)


def _is_clear(text: str) -> bool:
    """Return whether a person sees every character of a text."""
    return text.isprintable() and not has_hidden(text)


def _without_controls(text: str) -> str:
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def _printable(text: str) -> str:
    return _without_controls(text)[:80]


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
