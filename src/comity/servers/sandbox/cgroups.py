"""Control groups: the resources that all processes of one server use together."""

import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from comity.servers.sandbox.model import MEGABYTE, SandboxLimits

_ROOT: Final = Path("/sys/fs/cgroup")
_PARENT: Final = "comity"
_PERIOD_MICROSECONDS: Final = 100_000
_REMOVE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The folders of one group: one for each controller in version 1, a single one in version 2."""

    folders: tuple[Path, ...]
    limits: SandboxLimits

    @property
    def member_files(self) -> tuple[str, ...]:
        """The files that a process writes its id to, in order to join."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def reached_limits(self) -> list[str]:
        """Return which limits the processes of this group reached, in words."""
        found: list[str] = []
        for folder in self.folders:
            memory = _read_counters(folder, ("memory.oom_control", "memory.events"))
            if memory.get("oom_kill", 0) > 0:
                found.append(f"its limit of {self.limits.memory // MEGABYTE} MB of memory")
            if _read_counters(folder, ("pids.events",)).get("max", 0) > 0:
                found.append(f"its limit of {self.limits.processes} processes")
        return found

    def kill(self) -> None:
        """End every process of the group, also those that left the process group."""
        for file in self.member_files:
            with suppress(OSError):
                for pid in Path(file).read_text("ascii").split():
                    os.kill(int(pid), 9)

    def remove(self) -> None:
        """Remove the empty group. A process that is still ending gets a moment."""
        until = time.monotonic() + _REMOVE_SECONDS
        for folder in self.folders:
            while folder.exists() and time.monotonic() < until:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    self.kill()
                    time.sleep(0.01)


def _read_counters(folder: Path, names: Iterable[str]) -> dict[str, int]:
    for name in names:
        with suppress(OSError):
            lines = (folder / name).read_text("ascii")
            return {word: int(value) for word, value in re.findall(r"(\w+) (\d+)", lines)}
    return {}


class ControlGroups:
    """Creates the groups of servers below a folder of this gateway, where the machine allows it."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._parents = _find_parents(root)
        for parent in self._parents.values():
            _remove_left_groups(parent)

    @property
    def version(self) -> int:
        """The version in use, or 0 if this process may create no groups."""
        if not self._parents:
            return 0
        return 2 if "" in self._parents else 1

    def create(self, name: str, limits: SandboxLimits) -> ControlGroup | None:
        """Create a group with these limits, or return None where that is not possible."""
        folders: list[Path] = []
        for controller, parent in self._parents.items():
            folder = parent / name
            try:
                folder.mkdir(exist_ok=True)
                for file, value in _limit_files(controller, limits).items():
                    if (folder / file).exists():
                        (folder / file).write_text(value, "ascii")
            except OSError:
                ControlGroup(tuple(folders), limits).remove()
                return None
            folders.append(folder)
        return ControlGroup(tuple(folders), limits) if folders else None


def _remove_left_groups(parent: Path) -> None:
    """Remove the empty groups of gateways that were killed. Their names begin with a process id.

    The kernel removes no group that holds a process, so a running server keeps its group.
    """
    with suppress(OSError):
        for folder in parent.iterdir():
            owner, _, number = folder.name.partition("-")
            if owner.isdecimal() and number.isdecimal() and not Path("/proc", owner).exists():
                with suppress(OSError):
                    folder.rmdir()


def _limit_files(controller: str, limits: SandboxLimits) -> Mapping[str, str]:
    """Return the contents of the limit files of a controller; the empty name is version 2."""
    quota = limits.cpu_percent * _PERIOD_MICROSECONDS // 100
    memory, processes = str(limits.memory), str(limits.processes)
    by_controller = {
        "memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": processes},
        "cpu": {"cpu.cfs_quota_us": str(quota or -1)},
        "": {
            "memory.max": memory,
            "memory.swap.max": "0",
            "pids.max": processes,
            "cpu.max": f"{quota or 'max'} {_PERIOD_MICROSECONDS}",
        },
    }
    return by_controller[controller]


def _find_parents(root: Path) -> dict[str, Path]:
    """Return the folder for new groups of each controller that this process may use."""
    found: dict[str, Path] = {}
    own = _own_groups()
    if (root / "cgroup.controllers").exists():
        return _delegated_parent(root / own.get("", "").lstrip("/"))
    for controller in ("memory", "pids", "cpu"):
        parent = root / controller / own.get(controller, "").lstrip("/") / _PARENT
        with suppress(OSError):
            parent.mkdir(exist_ok=True)
            found[controller] = parent
    return found


def _delegated_parent(own: Path) -> dict[str, Path]:
    """Prepare a subtree of version 2 that was delegated to this process, if there is one.

    A group with controllers for its children holds no process, so this process moves to a child.
    """
    gateway, parent, pid = own / "gateway", own / _PARENT, str(os.getpid())
    try:
        gateway.mkdir(exist_ok=True)
        (gateway / "cgroup.procs").write_text(pid, "ascii")
        for group in (own, parent):
            group.mkdir(exist_ok=True)
            (group / "cgroup.subtree_control").write_text("+memory +pids +cpu", "ascii")
    except OSError:
        # Other programs are in the group too, or nobody delegated it.
        with suppress(OSError):
            (own / "cgroup.procs").write_text(pid, "ascii")
            gateway.rmdir()
        return {}
    return {"": parent}


def _own_groups() -> dict[str, str]:
    """Return the path of this process's group by controller; the empty name is version 2."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    return found
