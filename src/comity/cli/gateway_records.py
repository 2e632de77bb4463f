"""The gateways that run on this machine for this user: one file for each, with its address.

`comity serve` writes a record once it listens and removes it when it ends. The commands read the
records to find the gateway of a configuration, and the operator token of a gateway in local mode.
Nothing of the gateway itself is imported here, so that commands start quickly.

A record holds a secret. The folder is readable by its user alone (0700), and so is each file
(0600). A file that another user owns, or that another user may read, is never used.
"""

import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from comity.adapters.secret_files import write_secret
from comity.adapters.state_folder import prepare_state_folder, state_folder
from comity.wire.errors import Misconfigured

FOLDER: Final = "gateways"
MAX_RECORD_BYTES: Final = 64 * 1024
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (nothing is bound here)
_LOCALHOST: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """One running gateway: `config` is the absolute path of the first file that it has read.

    `token` makes its holder an operator of that gateway. It is empty unless the gateway runs in
    local mode. `started` tells the process from a later one with the same pid.
    """

    url: str
    pid: int
    started: str
    config: str
    token: str = field(default="", repr=False)


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def prepare_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the records, made if need be; raises Misconfigured where that fails."""
    return prepare_state_folder(FOLDER, environ=environ)


def write_record(
    url: str, config: Path, token: str = "", environ: Mapping[str, str] = os.environ
) -> Path:
    """Tell other processes of this user that this process serves `config` at `url`."""
    parts, pid = urlsplit(url), os.getpid()
    reached = url_of(parts.hostname or "", parts.port or 0)
    record = GatewayRecord(reached, pid, _start_time(pid), str(config.absolute()), token)
    file = prepare_folder(environ) / f"{parts.port}.json"
    try:
        write_secret(file, json.dumps(asdict(record)).encode())
    except OSError as problem:
        raise Misconfigured(f"{file} cannot be written: {problem.strerror}") from None
    return file


def record_file(record: GatewayRecord, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the record of a running gateway is."""
    return state_folder(environ) / FOLDER / f"{urlsplit(record.url).port}.json"


def url_of(host: str, port: int) -> str:
    """Where a gateway that listens there is reached from its own machine."""
    host = _ANY_ADDRESS.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def remove_record(file: Path) -> None:
    """Remove the record of this process; one that another process has written since stays."""
    record = _read(file)
    if record is not None and record.pid == os.getpid():
        with suppress(OSError):
            file.unlink()


def find_gateway(config: Path, environ: Mapping[str, str] = os.environ) -> GatewayRecord | None:
    """The running gateway of this configuration file; of several, the one that started last."""
    wanted = config.resolve()
    found = [each for each in _running(environ) if Path(each.config).resolve() == wanted]
    return found[-1] if found else None


def find_gateway_by_url(url: str, environ: Mapping[str, str] = os.environ) -> GatewayRecord | None:
    """The running gateway at this address. Ask it at the `url` of its record.

    Another name of this machine, as localhost, may lead to the port of another user's program.
    """
    wanted = _place(url)
    found = [each for each in _running(environ) if wanted and _place(each.url) == wanted]
    return found[-1] if found else None


def _place(url: str) -> tuple[str, str, int | None] | None:
    """An address, alike for all names of the loopback interface."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    host = _ANY_ADDRESS.get(host, host)
    return parts.scheme, "localhost" if host in _LOCALHOST else host, port


def _running(environ: Mapping[str, str]) -> Iterator[GatewayRecord]:
    """Every gateway that runs, in the order of their starts; what others left behind is removed."""
    for file in _files(environ):
        record = _read(file)
        if record is None:
            continue
        if _is_alive(record):
            yield record
        else:
            with suppress(OSError):
                file.unlink()


def _files(environ: Mapping[str, str]) -> list[Path]:
    try:
        files = [*(state_folder(environ) / FOLDER).glob("[0-9]*.json")]
        return sorted(files, key=lambda file: file.stat().st_mtime_ns)
    except (OSError, Misconfigured):
        return []


def _read(file: Path) -> GatewayRecord | None:
    """A record, if it is this user's alone and whole."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            about = os.fstat(handle)
            is_own = about.st_uid == os.getuid() and not about.st_mode & 0o077
            if not is_own or not stat.S_ISREG(about.st_mode):
                return None
            said: object = json.loads(opened.read(MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return _record_of(cast("dict[str, Any]", said)) if isinstance(said, dict) else None


def _record_of(said: Mapping[str, Any]) -> GatewayRecord | None:
    values = {each.name: said.get(each.name) for each in fields(GatewayRecord)}
    pid = values.pop("pid")
    if not isinstance(pid, int) or not all(isinstance(each, str) for each in values.values()):
        return None
    return GatewayRecord(pid=pid, **cast("dict[str, str]", values))


def _is_alive(record: GatewayRecord) -> bool:
    try:
        os.kill(record.pid, 0)
    except (OSError, OverflowError):
        # Also where the pid is another user's process now: the gateway was this user's.
        return False
    return record.pid > 0 and _start_time(record.pid) == record.started


def _start_time(pid: int) -> str:
    """When a process began, in the system's own units; empty where the system does not tell.

    A process that has ended, and whose parent has not taken notice yet, has no start time.
    """
    try:
        said = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name of the program stands in brackets, and may hold anything.
    state, *following = said.rpartition(")")[2].split()
    return "" if state == "Z" else following[18]
