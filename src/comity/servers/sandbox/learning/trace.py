"""Records the files, programs and connections of a server with `strace`.

The names in a trace are hostile. With `-xx`, `strace` writes every byte of them in hexadecimal, so
no name can look like another part of a line.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAX_PLACES: Final = 50_000
"""How many different names a trace may have. A note says if there were more."""

_OPENING: Final = ("open", "openat", "openat2")
_CHANGING: Final = (
    *("creat", "mkdir", "mkdirat", "mknod", "mknodat", "rename", "renameat", "renameat2"),
    *("link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "rmdir", "truncate"),
    *("chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat", "setxattr", "lsetxattr", "removexattr"),
)
_LOOKING: Final = ("stat", "lstat", "newfstatat", "statx")
_EXECUTING: Final = ("execve", "execveat")
_MOVING: Final = ("chdir", "fchdir")
_FORKING: Final = ("fork", "vfork", "clone", "clone3")
_CONNECTING: Final = ("connect",)
_TRACED: Final = (
    *(*_OPENING, *_CHANGING, *_LOOKING, *_EXECUTING),
    *(*_MOVING, *_FORKING, *_CONNECTING),
)
# The first text of these calls is the content of a link, and not a file that is used.
_WITH_TARGET: Final = ("symlink", "symlinkat")
_OF_TWO_FILES: Final = ("rename", "renameat", "renameat2", "link", "linkat")
_WRITE_FLAGS: Final = re.compile(r"\bO_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b")

_HEX: Final = r"(?:\\x[0-9a-f]{2})*"
_LINE: Final = re.compile(r"(\d+) +(.*)")
_CALL: Final = re.compile(rf"(\w+)\((.*)\) += (-?\d+)(?:<({_HEX})>)?(.*)")
_UNFINISHED: Final = " <unfinished ...>"
_RESUMED: Final = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_FOLDER_AND_NAME: Final = re.compile(
    rf'(?:(?:AT_FDCWD|-?\d+)(?:<(?P<folder>{_HEX})>)?, )?"(?P<name>{_HEX})"'
)
_DESCRIPTOR: Final = re.compile(rf"\d+<({_HEX})>")
_ADDRESS: Final = re.compile(
    r"sin6?_port=htons\((\d+)\).*?"
    rf'(?:inet_addr\("({_HEX})"\)|inet_pton\(AF_INET6, "({_HEX})")'
)
_UNIX_SOCKET: Final = re.compile(rf'sun_path="({_HEX})"')
_PROBE_SECONDS: Final = 20


@dataclass(slots=True)
class TracedAccess:
    """The names that a server used with success. A folder may be among the files that it read."""

    read: set[str] = field(default_factory=set[str])
    written: set[str] = field(default_factory=set[str])
    # Folders that it only looked at, as programs do with each parent of a file.
    seen_folders: set[str] = field(default_factory=set[str])
    executed: set[str] = field(default_factory=set[str])
    # Connections that did not go through the proxy: `HOST:PORT`, or the path of a socket.
    connected: set[str] = field(default_factory=set[str])
    is_complete: bool = True

    def add(self, names: set[str], name: str) -> None:
        if len(names) < MAX_PLACES:
            names.add(name)
        elif name not in names:
            self.is_complete = False


def find_strace() -> str | None:
    """Return the path of the program `strace`, from the folders of the system only."""
    return shutil.which("strace", path="/usr/bin:/bin:/usr/local/bin")


def trace_problem() -> str | None:
    """Return why files cannot be recorded on this machine, or None if they can."""
    strace = find_strace()
    if sys.platform != "linux":
        return "recording files needs Linux"
    if strace is None:
        return "strace is not installed (package `strace`)"
    try:
        done = subprocess.run(
            trace_command(strace, os.devnull, (sys.executable, "-I", "-S", "-c", "")),
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"strace does not work here ({type(error).__name__})"
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode == 0:
        return None
    return f"strace does not work here ({(lines or ['it failed'])[-1][:200]})"


def trace_command(strace: str, file: str, argv: Iterable[str]) -> tuple[str, ...]:
    """Return the command line that runs a program and records it in a file."""
    # A question mark lets strace pass over calls that this machine's architecture lacks.
    calls = ",".join(f"?{name}" for name in _TRACED)
    options = ("-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-e", f"trace={calls}", "-o", file)
    return (strace, *options, "--", *argv)


def read_trace(file: Path, skipped_programs: int = 0) -> TracedAccess:
    """Return what a trace records, from the program after the skipped ones on."""
    access = TracedAccess()
    reader = _TraceReader(access, skipped_programs)
    try:
        with file.open(encoding="ascii", errors="replace") as lines:
            for pid, call in _whole_calls(lines):
                reader.take(pid, call)
    except FileNotFoundError:
        access.is_complete = False
    return access


def _whole_calls(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each call on one line. strace divides a call that another process interrupts."""
    begun: dict[str, str] = {}
    for line in lines:
        found = _LINE.fullmatch(line.rstrip("\n"))
        if found is None:
            continue
        pid, text = found.groups()
        if text.endswith(_UNFINISHED):
            begun[pid] = text.removesuffix(_UNFINISHED)
            continue
        resumed = _RESUMED.fullmatch(text)
        yield pid, text if resumed is None else begun.pop(pid, "") + resumed[1]


class _TraceReader:
    """Adds the calls of a trace to the access that they show, with the folder of each process."""

    def __init__(self, access: TracedAccess, skipped_programs: int) -> None:
        self._access = access
        self._skipped = skipped_programs
        self._folder_by_process: dict[str, str] = {}

    def take(self, pid: str, text: str) -> None:
        found = _CALL.fullmatch(text)
        if found is None:
            return
        name, arguments, result, opened, rest = found.groups()
        is_pending = rest.startswith(" EINPROGRESS")
        if result.startswith("-") and not is_pending:
            return
        if name in _FORKING:
            self._folder_by_process[result] = self._folder_by_process.get(pid, "/")
        elif name in _MOVING:
            self._move(pid, arguments)
        elif name in _EXECUTING and self._skipped > 0:
            self._skipped -= 1
        elif self._skipped <= 0:
            self._record(pid, name, arguments, _decode(opened or ""))

    def _record(self, pid: str, name: str, arguments: str, opened: str) -> None:
        access = self._access
        if name in _CONNECTING:
            self._record_connection(arguments)
            return
        paths = self._paths(pid, name, arguments)
        if name in _EXECUTING:
            target = access.executed
        elif name in _LOOKING:
            if "S_IFDIR" not in arguments and "S_IFREG" not in arguments:
                return
            target = access.seen_folders if "S_IFDIR" in arguments else access.read
        elif name in _CHANGING or _WRITE_FLAGS.search(arguments):
            target = access.written
        else:
            target = access.read
        # The kernel's own name of an opened file has no symbolic links. Both names count, because
        # the person must see where a link leads, and the server must find the link.
        for path in (*paths, *([opened] if opened.startswith("/") else [])):
            access.add(target, path)

    def _paths(self, pid: str, name: str, arguments: str) -> list[str]:
        found: list[str] = []
        for each in _FOLDER_AND_NAME.finditer(arguments):
            if each["folder"] and "AT_FDCWD<" in each[0]:
                self._folder_by_process[pid] = _decode(each["folder"])
            folder = _decode(each["folder"] or "") or self._folder_by_process.get(pid, "/")
            found.append(os.path.normpath(Path(folder, _decode(each["name"]))))
        if name in _WITH_TARGET:
            return found[1:2]
        return found[: 2 if name in _OF_TWO_FILES else 1]

    def _move(self, pid: str, arguments: str) -> None:
        descriptor = _DESCRIPTOR.match(arguments)
        paths = [_decode(descriptor[1])] if descriptor else self._paths(pid, "", arguments)
        for folder in paths:
            self._folder_by_process[pid] = folder

    def _record_connection(self, arguments: str) -> None:
        address, path = _ADDRESS.search(arguments), _UNIX_SOCKET.search(arguments)
        if address is not None and address[1] != "0":
            host = _decode(address[2]) if address[2] else f"[{_decode(address[3])}]"
            self._access.add(self._access.connected, f"{host}:{address[1]}")
        elif path is not None:
            self._access.add(self._access.connected, _decode(path[1]))


def _decode(text: str) -> str:
    return os.fsdecode(bytes.fromhex(text.replace("\\x", "")))
