"""A step before a program that nobody vouches for: it gives up what it may not use, and becomes it.

Run as `python -m comity.adapters.upstream.confined BOUNDS PROGRAM...`. Where something cannot be
given up there is no program: it says so and ends. Uses the standard library alone.
"""

import json
import os
import resource
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from comity.adapters.upstream.landlock import give_up_files
from comity.adapters.upstream.seccomp import give_up_calls

CANNOT = 97
"""With this status it ends where it could not confine the program."""

_MOST_FILES = 1024
_LONGEST_FILE = 256 * 1024 * 1024
_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/localtime", "/etc/timezone"),
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
    *("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a program may use; `memory` is in bytes."""

    network: bool
    memory: int
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


def confined(bounds: Bounds, argv: Sequence[str]) -> tuple[str, ...]:
    """The command line by which a program is run within these bounds."""
    module = "comity.adapters.upstream.confined"
    return (sys.executable, "-I", "-m", module, json.dumps(asdict(bounds)), *argv)


def confine(bounds: Bounds, program: str) -> None:
    """Give up everything else, for good. Raises OSError where that cannot be."""
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _MOST_FILES),
        (resource.RLIMIT_FSIZE, _LONGEST_FILE),
        (resource.RLIMIT_DATA, bounds.memory),
    ):
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))
    package = Path(__file__).resolve().parents[2]
    own = (sys.prefix, sys.base_prefix, str(Path(program).resolve().parent), str(package))
    readable, writable = (*_SYSTEM, *own, *bounds.readable), ("/dev/null", *bounds.writable)
    give_up_calls(network=bounds.network)
    # A package is found by the names beside it; what else lies there may be the gateway's store.
    give_up_files(readable, writable, (str(package.parent),))


def main(words: Sequence[str]) -> int:
    bounds, (name, *rest) = Bounds(**json.loads(words[0])), words[1:]
    program = shutil.which(name)
    if program is None:
        sys.stderr.write(f"there is no program {name!r:.200}; check that it is installed\n")
        return CANNOT
    try:
        confine(bounds, program)
    except OSError as refused:
        sys.stderr.write(
            f"this machine cannot confine a program ({refused.strerror}); it needs Linux 5.13 with "
            "Landlock and seccomp, or confine = false in [registration]\n"
        )
        return CANNOT
    os.execv(program, [name, *rest])  # noqa: S606  # words that the operator's patterns allow
    return CANNOT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
