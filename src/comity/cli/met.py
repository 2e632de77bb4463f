"""What the doctor looks at around a gateway: its port, and the clients that are to call it."""

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from comity.cli.asking import Gateway
from comity.cli.client_files import NAME, ClientFile, project_files, user_files
from comity.cli.findings import Finding, problem, warning, well
from comity.cli.importing import is_comity
from comity.cli.machine import program_path
from comity.cli.show import short
from comity.config import Settings
from comity.wire.errors import Misconfigured, Unavailable

# Who listens and stays silent is no gateway.
PATIENCE: Final = timedelta(seconds=2)
_URLS: Final = ("url", "serverUrl", "httpUrl")


def look_at_the_port(settings: Settings) -> tuple[str, Finding]:
    """The address of the gateway that runs, if one does; and whether one could."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{settings.port}"
    if settings.port == 0:
        return "", well("port", "a free one is taken at each start")
    running = _gateway_at(address)
    if running:
        return address, well("port", f"a gateway runs at {address} ({running})")
    try:
        with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((settings.host, settings.port))
    except OSError as trouble:
        return "", _taken(settings, trouble)
    return "", well("port", f"{settings.port} is free")


def refuse_a_taken_port(settings: Settings) -> None:
    """Before any server is started in vain."""
    running, port = look_at_the_port(settings)
    if running:
        raise Misconfigured(
            f"port {settings.port} is taken: a gateway runs at {running} already, see "
            "`comity status`; end that one, or choose another port with --port"
        )
    if port.verdict == "problem":
        raise Misconfigured(f"port {port.told}; {port.remedy}")


def holder_of(port: int) -> str:
    """Which program listens on a port of this machine, where the system tells (Linux)."""
    with suppress(OSError, ValueError):
        inodes = set(_listening(port))
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                for handle in (process / "fd").iterdir():
                    if str(handle.readlink()) in inodes:
                        name = (process / "comm").read_text().strip()
                        return f"{name}, process {process.name}"
    return ""


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{fields[9]}]"


def _taken(settings: Settings, trouble: OSError) -> Finding:
    if trouble.errno != errno.EADDRINUSE:
        return problem(
            "port",
            f"{settings.port} of {settings.host} cannot be listened on: {trouble.strerror}",
            "choose another with --host and --port",
        )
    holder = holder_of(settings.port)
    return problem(
        "port",
        f"{settings.port} is held by {holder or 'another program'}, which is no gateway",
        "end that program, or choose another port with --port or in comity.toml",
    )


def look_at_the_clients(environ: Mapping[str, str], running: str) -> Iterator[Finding]:
    """Every client in whose configuration Comity stands, and whether it finds it there."""
    met = False
    for file in (*user_files(environ), *project_files(Path.cwd())):
        if not file.exists:
            continue
        try:
            entries = file.entries()
        except Misconfigured as trouble:
            yield warning(f"client {file.client.name}", str(trouble), "put the file right")
            continue
        for name, entry in entries.items():
            if name == NAME or is_comity(entry):
                met = True
                yield _met(file, entry, running)
    if not met:
        yield well("clients", "none calls Comity yet; `comity client connect NAME` lets one")


def _met(file: ClientFile, entry: Mapping[str, Any], running: str) -> Finding:
    about = f"client {file.client.name}"
    url = next((entry[key] for key in _URLS if isinstance(entry.get(key), str)), "")
    if not url:
        return _starts(about, entry)
    try:
        parts = urlsplit(url)
        found = _gateway_at(f"{parts.scheme}://{parts.netloc}")
    except (ValueError, Misconfigured):
        found = ""
    if found:
        return well(about, f"calls the gateway at {parts_of(url)}")
    if running:
        return problem(
            about,
            f"{short(file.path)} calls {parts_of(url)}, and the gateway is at {running}",
            f"comity client connect {file.client.name} --url {running}",
        )
    return warning(
        about, f"calls {parts_of(url)}, where nobody answers now", "start it with `comity serve`"
    )


def _starts(about: str, entry: Mapping[str, Any]) -> Finding:
    command = str(entry.get("command", ""))
    if program_path(command, os.environ, None) is None:
        return problem(
            about, f"starts {command!r}, which is not there", "connect it anew with `comity client`"
        )
    args = entry.get("args")
    file = str(cast("list[object]", args)[-1]) if isinstance(args, list) and args else ""
    if file.endswith((".toml", ".json")) and not Path(file).is_file():
        return problem(
            about,
            f"starts Comity with {file}, which is not there",
            "connect it anew, with --config",
        )
    return well(about, "is joined to the gateway by a program that it starts")


def parts_of(url: str) -> str:
    """An address without what may be a secret in it."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    except ValueError:
        return "an address that cannot be"


def _gateway_at(address: str) -> str:
    """The version of the gateway there; nothing if there is none."""
    try:
        return _version_at(Gateway(address, PATIENCE))
    except (Unavailable, Misconfigured):
        return ""


def _version_at(gateway: Gateway) -> str:
    try:
        status = gateway.status()
    except Misconfigured:
        if gateway.wants_a_key:
            return "which tells more to those who show a key"
        raise
    return str(status.get("version", "")) if status.get("name") == "comity" else ""
