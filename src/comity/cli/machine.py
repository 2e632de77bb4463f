"""What the doctor looks at on the machine itself: limits, folders, the network's variables."""

import asyncio
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from comity.adapters.upstream.containment import what_this_machine_allows
from comity.cli.findings import Finding, problem, warning, well
from comity.wire.errors import Unavailable

try:
    import resource
except ImportError:  # only Unix limits open files this way
    resource = None

FEW_FILES: Final = 4096
LITTLE_SPACE: Final = 100 * 1024 * 1024
PROXIES: Final = (
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
    "HTTPS_PROXY",
    "https_proxy",
)


def look_at_the_machine(environ: Mapping[str, str]) -> Iterator[Finding]:
    yield well("Python", f"{platform.python_version()} on {platform.system()}, {sys.executable}")
    yield _event_loop()
    yield _open_files()
    yield _temporary_folder()
    yield _proxies(environ)
    yield from _containment()


def _event_loop() -> Finding:
    if sys.platform != "win32" and "uvloop" not in sys.modules:
        return warning(
            "event loop",
            "uvloop is not there, so calls cost more of the processor",
            "install it beside Comity: pip install uvloop",
        )
    return well("event loop", "uvloop")


def _open_files() -> Finding:
    if resource is None:
        return well("open files", "not limited in a way that counts here")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        return warning(
            "open files",
            f"at most {hard}; every connection is one",
            "raise the limit: `ulimit -Hn`, or LimitNOFILE= in the service's unit",
        )
    return well("open files", "as many as wanted" if hard == resource.RLIM_INFINITY else str(hard))


def _temporary_folder() -> Finding:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile():
            free = shutil.disk_usage(folder).free
    except OSError as trouble:
        return problem(
            "temporary folder",
            f"{folder} cannot be written: {trouble.strerror}",
            "let it be written, or name another one in TMPDIR",
        )
    if free < LITTLE_SPACE:
        return warning(
            "temporary folder",
            f"{folder} has {free // 2**20} MiB left",
            "make room, or name another one in TMPDIR",
        )
    return well("temporary folder", f"{folder}, {free // 2**30} GiB free")


def _proxies(environ: Mapping[str, str]) -> Finding:
    """Clients heed these variables, and would send what is for this machine to the proxy."""
    named = [name for name in PROXIES if environ.get(name)]
    spared = environ.get("NO_PROXY", environ.get("no_proxy", "")).replace(" ", "").split(",")
    if named and not {"*", "127.0.0.1", "127.0.0.0/8"} & set(spared):
        return warning(
            "proxies",
            f"{', '.join(named)} is set, and NO_PROXY does not name 127.0.0.1; a client that heeds "
            "them does not find a gateway on this machine",
            "set NO_PROXY=localhost,127.0.0.1,::1 where the client starts",
        )
    return well("proxies", "not in the way of this machine's own addresses")


def _containment() -> Iterator[Finding]:
    try:
        allowed = asyncio.run(what_this_machine_allows())
    except (Unavailable, OSError) as trouble:
        yield warning("containment", str(trouble), "see whether processes can be started at all")
        return
    if allowed.ends_daemons:
        yield well("containment", allowed.promise)
    else:
        yield warning("containment", allowed.promise, allowed.what_to_do)


def program_path(command: str, environ: Mapping[str, str], folder: str | None) -> str | None:
    """Where the program is that a server's command names, as the server's start would find it."""
    if os.sep in command:
        path = Path(folder or "", command)
        return str(path) if os.access(path, os.X_OK) and path.is_file() else None
    return shutil.which(command, path=environ.get("PATH", os.defpath))
