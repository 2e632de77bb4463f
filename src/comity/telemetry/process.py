"""Metrics of this process from the operating system, under the names of Prometheus clients."""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from comity.telemetry.metrics import FamilyKind, MetricFamily

try:
    import resource
except ImportError:  # only Unix has this module
    resource = None

_PROC: Final = Path("/proc/self")


class ProcessMetrics:
    """The metrics of this process, as far as the system provides them."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._began = _began() or time.time()

    def __call__(self) -> list[MetricFamily]:
        about = (("version", self._version), ("python", platform.python_version()))
        return [
            MetricFamily("comity_build_info", "gauge", "Which Comity this is.", [(about, 1)]),
            *(
                MetricFamily(name, kind, told, [((), value)])
                for name, kind, told, read in _READINGS
                if (value := read()) is not None
            ),
            MetricFamily(
                "process_start_time_seconds",
                "gauge",
                "When the process was started, as a Unix time.",
                [((), self._began)],
            ),
        ]


def resident_bytes() -> float | None:
    return _pages(1)


def _virtual_bytes() -> float | None:
    return _pages(0)


def _pages(place: int) -> float | None:
    try:
        return int((_PROC / "statm").read_bytes().split()[place]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _open_fds() -> float | None:
    try:
        # Newer kernels give the number; listing 20,000 entries takes milliseconds.
        return (_PROC / "fd").stat().st_size or len(os.listdir(_PROC / "fd"))  # noqa: PTH208 - names do
    except OSError:
        return None


def _most_fds() -> float | None:
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _began() -> float | None:
    """Return the start time of the process: ticks since boot, added to the boot time."""
    try:
        # The program name is in parentheses and may contain spaces.
        ticks = int((_PROC / "stat").read_bytes().rpartition(b")")[2].split()[19])
        boot = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_bytes().splitlines()
            if line.startswith(b"btime ")
        )
    except (OSError, StopIteration):
        return None
    return boot + ticks / os.sysconf("SC_CLK_TCK")


type _Reading = tuple[str, FamilyKind, str, Callable[[], float | None]]
_READINGS: Final[tuple[_Reading, ...]] = (
    ("process_cpu_seconds_total", "counter", "CPU time, of user and system.", time.process_time),
    ("process_resident_memory_bytes", "gauge", "Memory that is held.", resident_bytes),
    ("process_virtual_memory_bytes", "gauge", "Memory that is reserved.", _virtual_bytes),
    ("process_open_fds", "gauge", "Open files, connections among them.", _open_fds),
    ("process_max_fds", "gauge", "How many open files there may be.", _most_fds),
)
