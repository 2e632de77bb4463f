"""The command line that runs a server inside its sandbox."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from comity.servers.sandbox import stage
from comity.servers.sandbox.model import SandboxLevel, SandboxPolicy
from comity.servers.sandbox.programs import (
    SYSTEM_LIBRARIES,
    SYSTEM_PROGRAMS,
    ProgramFiles,
    add_programs,
    find_program_files,
)
from comity.servers.sandbox.reach import is_below

SCRATCH: Final = "/tmp"  # noqa: S108  # inside of its own namespace
EGRESS_SOCKET: Final = "/run/comity-egress"
EGRESS_PORT: Final = 3128
_HOST_NAME: Final = "sandbox"
_NOBODY: Final = 65534
# Python compiles a script at each start, but not a compiled one.
_COMPILED: Final = Path(stage.__cached__ or "")
_STAGE_FILE: Final = str((_COMPILED if _COMPILED.is_file() else Path(stage.__file__)).resolve())
_DEVICES: Final = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# What a process sees of the machine where it has no namespaces.
_OWN_PROC: Final = (
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version"),
    *("/sys/devices/system/cpu", "/etc/resolv.conf"),
)


@dataclass(frozen=True, slots=True)
class EgressDoor:
    """The way to the network proxy: a unix socket at L3, a port of this machine at L2."""

    socket_path: str = ""
    port: int = 0


def sandbox_command(
    policy: SandboxPolicy,
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: str,
    scratch: str = "",
    door: EgressDoor | None = None,
    user: int = 0,
) -> tuple[str, ...]:
    """Return the command line that confines a program. `scratch` is its folder without namespaces.

    With Landlock, a program that root starts becomes `user` if it was granted no folders.
    Raises Unavailable if there is no such program.
    """
    access = policy.access
    files = find_program_files(
        argv, environment, folder, with_script=access.reads_script, writable=access.writable
    )
    add_programs(files, access.programs, environment)
    wanted = _stage_policy(policy, files, folder, scratch, door)
    # In a folder that root granted, another user could not do what was granted.
    has_folders = access.readable or access.writable or access.listed
    if policy.level is SandboxLevel.LANDLOCK and not has_folders:
        wanted["user"] = user
    inner = (*_stage_python(), json.dumps(wanted), files.program, *files.argv)
    if policy.level is SandboxLevel.BUBBLEWRAP:
        return (*_bubblewrap(policy, files, door), *inner)
    return inner


def proxy_variables(door: EgressDoor | None) -> dict[str, str]:
    """Return the variables that lead a program to the proxy."""
    url = ""
    if door is not None:
        url = f"http://127.0.0.1:{EGRESS_PORT if door.socket_path else door.port}"
    # Without a network they are empty, because those of the gateway may hold a password.
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    others = ("ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy")
    # Node takes the variables into account only if it is told to.
    return {**dict.fromkeys(names, url), **dict.fromkeys(others, ""), "NODE_USE_ENV_PROXY": "1"}


def find_bubblewrap() -> str | None:
    """Return the path of the program `bwrap`, from the folders of the system only."""
    return shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")


def base_python() -> str:
    """Return the Python behind a virtual environment: it starts faster and reads less."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def _stage_python() -> tuple[str, ...]:
    return (base_python(), "-I", "-S", _STAGE_FILE)


def _stage_policy(
    policy: SandboxPolicy,
    files: ProgramFiles,
    folder: str,
    scratch: str,
    door: EgressDoor | None,
) -> dict[str, Any]:
    access, is_wrapped = policy.access, policy.level is SandboxLevel.BUBBLEWRAP
    readable, writable, listed = (
        [place for place in places if place in policy.folders]
        for places in (access.readable, access.writable, access.listed)
    )
    own_folder = SCRATCH if is_wrapped else scratch
    # With namespaces, everything that can be seen may be read.
    shown = (
        ["/"]
        if is_wrapped
        else [*SYSTEM_LIBRARIES, *_OWN_PROC, *_DEVICES, *files.readable, *readable]
    )
    programs = [*files.executable]
    if access.may_execute:
        programs += shown if is_wrapped else [*shown, *SYSTEM_PROGRAMS, *writable]
    reached = (*access.readable, *access.writable, *files.readable)
    own_files = (*files.readable, files.data)
    has_own_files = any(is_below(place, (folder,)) for place in own_files)
    return {
        "level": int(policy.level),
        "limits": asdict(policy.limits),
        # A namespace of users has a count of its own.
        "counts_processes": not is_wrapped,
        "readable": shown,
        "writable": ["/dev/null", *writable, *([own_folder] if own_folder else [])],
        "executable": programs,
        "listed": [*listed, *files.listed],
        "identities": {
            place: (policy.folders[place].device, policy.folders[place].inode)
            for place in (*readable, *writable, *([] if is_wrapped else listed))
        },
        "network": door is not None,
        "execution": access.may_execute,
        "ports": [] if door is None else [door.port or EGRESS_PORT],
        "egress": EGRESS_SOCKET if is_wrapped and door is not None else "",
        "egress_port": EGRESS_PORT,
        "folder": folder if has_own_files or is_below(folder, reached) else own_folder,
        "user": 0,
        "scratch": scratch,
        "program_files": [files.program, *files.readable, *files.executable, *files.listed],
    }


def _bubblewrap(
    policy: SandboxPolicy, files: ProgramFiles, door: EgressDoor | None
) -> tuple[str, ...]:
    access, size = policy.access, str(policy.limits.scratch_bytes)
    words = [
        find_bubblewrap() or "bwrap",
        *("--unshare-all", "--die-with-parent", "--cap-drop", "ALL"),
        *("--uid", str(_NOBODY), "--gid", str(_NOBODY), "--hostname", _HOST_NAME),
    ]
    words += [*_system_mounts(access.may_execute), "--proc", "/proc", "--dev", "/dev"]
    words += ["--size", size, "--tmpfs", SCRATCH]
    # The folder of a script is made anew. Below the scratch folder it would be writable.
    around = (*files.readable, *access.readable, *access.writable)
    made = [each for each in sorted(files.listed) if is_below(each, (SCRATCH,))]
    made = [each for each in made if not is_below(each, around)]
    words += [word for folder in made for word in ("--tmpfs", folder)]
    python = Path(base_python())
    shown = [*files.readable, *files.executable, _STAGE_FILE, str(python)]
    shown += [str(python.parent.parent / "lib")]
    for link, target in files.links.items():
        if not is_below(link, (*files.readable, *_visible_system(access.may_execute))):
            words += ["--symlink", target, link]
    for place in _outermost(shown, access.may_execute):
        words += ["--ro-bind-try", place, place]
    # A name can lead elsewhere by the time of the mount. The stage compares what is there then.
    for option, places in (("--ro-bind-try", access.readable), ("--bind-try", access.writable)):
        for place in sorted(places):
            if place in policy.folders:
                words += [option, policy.folders[place].path, place]
    if door is not None:
        words += ["--ro-bind", door.socket_path, EGRESS_SOCKET]
    words += [word for folder in made for word in ("--remount-ro", folder)]
    return (*words, "--remount-ro", "/", "--")


def _visible_system(may_execute: bool) -> tuple[str, ...]:
    return (*SYSTEM_LIBRARIES, *(SYSTEM_PROGRAMS if may_execute else ()))


def _system_mounts(may_execute: bool) -> list[str]:
    words: list[str] = []
    places = _visible_system(may_execute)
    # The first line of a script may name its interpreter by one of these links.
    links = [place for place in ("/bin", "/sbin") if Path(place).is_symlink()]
    for place in sorted({*places, *links}):
        here = Path(place)
        if here.is_symlink():
            words += ["--symlink", str(here.readlink()), place]
        elif here.exists() and not is_below(str(here.parent), places):
            words += ["--ro-bind", place, place]
    return words


def _outermost(places: Iterable[str], may_execute: bool) -> list[str]:
    """Return the places that are not below another one, with parents before children."""
    found: list[str] = []
    for place in sorted(set(places)):
        if not is_below(place, (*found, *_visible_system(may_execute))):
            found.append(place)
    return found
