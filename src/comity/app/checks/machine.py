"""Checks of the machine, the port and the MCP clients, and the form of their results."""

import asyncio
import errno
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from rich.console import RenderableType

from comity.app.settings import Settings
from comity.cli.api_client import Answer, ApiClient
from comity.cli.output import (
    build_table,
    line_text,
    shorten_path,
)
from comity.cli.target import running_gateway
from comity.clients.applications import NAME
from comity.clients.files import ClientFile, project_files, user_files
from comity.clients.server_import import entry_url, entry_words, is_comity
from comity.errors import Misconfigured, Unavailable
from comity.servers.commands import has_failed
from comity.servers.process.keeper_client import detect_containment
from comity.servers.sandbox.levels import detect_levels
from comity.servers.sandbox.model import SandboxLevel
from comity.servers.sandbox.oci import find_engine

try:
    import resource
except ImportError:  # only Unix limits open files this way
    resource = None

type Verdict = Literal["ok", "warning", "problem"]


STYLES: Final[dict[Verdict, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. It never holds a secret, because users paste it into bug reports."""

    verdict: Verdict
    about: str
    message: str
    remedy: str = ""

    def as_json(self) -> dict[str, str | None]:
        return {
            "verdict": self.verdict,
            "about": self.about,
            "message": self.message,
            "remedy": self.remedy or None,
        }


def ok_result(about: str, message: str) -> Finding:
    return Finding("ok", about, message)


def warning_result(about: str, message: str, remedy: str) -> Finding:
    return Finding("warning", about, message, remedy)


def problem_result(about: str, message: str, remedy: str) -> Finding:
    return Finding("problem", about, message, remedy)


def findings_table(findings: Iterable[Finding]) -> RenderableType:
    rows = [
        (
            line_text(each.verdict, STYLES[each.verdict]),
            each.about,
            f"{each.message}  ->  {each.remedy}" if each.remedy else each.message,
        )
        for each in findings
    ]
    return build_table(("", "", ""), rows)


MIN_OPEN_FILES: Final = 4096
ENGINE_SECONDS: Final = 10.0


MIN_FREE_BYTES: Final = 100 * 1024 * 1024


PROXY_VARIABLES: Final = (
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
    "HTTPS_PROXY",
    "https_proxy",
)


def check_machine(environ: Mapping[str, str]) -> Iterator[Finding]:
    yield ok_result(
        "Python", f"{platform.python_version()} on {platform.system()}, {sys.executable}"
    )
    yield _check_event_loop()
    yield _check_open_files()
    yield _check_temporary_folder()
    yield _check_proxies(environ)
    yield from _check_containment()
    yield _check_sandbox()
    yield _check_engine()


def _check_event_loop() -> Finding:
    if sys.platform != "win32" and "uvloop" not in sys.modules:
        return warning_result(
            "event loop",
            "uvloop is not there, so calls cost more of the processor",
            "install it beside Comity: pip install uvloop",
        )
    return ok_result("event loop", "uvloop")


def _check_open_files() -> Finding:
    if resource is None:
        return ok_result("open files", "not limited in a way that counts here")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES:
        return warning_result(
            "open files",
            f"at most {hard}; every connection is one",
            "raise the limit: `ulimit -Hn`, or LimitNOFILE= in the service's unit",
        )
    return ok_result(
        "open files", "as many as wanted" if hard == resource.RLIM_INFINITY else str(hard)
    )


def _check_temporary_folder() -> Finding:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile():
            free = shutil.disk_usage(folder).free
    except OSError as trouble:
        return problem_result(
            "temporary folder",
            f"{folder} cannot be written: {trouble.strerror}",
            "let it be written, or name another one in TMPDIR",
        )
    if free < MIN_FREE_BYTES:
        return warning_result(
            "temporary folder",
            f"{folder} has {free // 2**20} MiB left",
            "free some space, or set TMPDIR to another folder",
        )
    return ok_result("temporary folder", f"{folder}, {free // 2**30} GiB free")


def _check_proxies(environ: Mapping[str, str]) -> Finding:
    """Check the proxy variables. Clients would send local requests to the proxy."""
    named = [name for name in PROXY_VARIABLES if environ.get(name)]
    spared = environ.get("NO_PROXY", environ.get("no_proxy", "")).replace(" ", "").split(",")
    if named and not {"*", "127.0.0.1", "127.0.0.0/8"} & set(spared):
        return warning_result(
            "proxies",
            f"{', '.join(named)} is set, and NO_PROXY does not name 127.0.0.1; a client that heeds "
            "them does not find a gateway on this machine",
            "set NO_PROXY=localhost,127.0.0.1,::1 where the client starts",
        )
    return ok_result("proxies", "localhost is excluded from the HTTP proxy")


def _check_containment() -> Iterator[Finding]:
    try:
        allowed = asyncio.run(detect_containment())
    except (Unavailable, OSError) as trouble:
        yield warning_result(
            "containment", str(trouble), "see whether processes can be started at all"
        )
        return
    if allowed.ends_daemons:
        yield ok_result("containment", allowed.promise)
    else:
        yield warning_result("containment", allowed.promise, allowed.advice)


def _check_sandbox() -> Finding:
    try:
        found = detect_levels()
    except Unavailable as busy:
        return warning_result("sandbox", f"the level is not known: {busy}", "try again later")
    if found.best is SandboxLevel.BUBBLEWRAP:
        return ok_result("sandbox", "servers can be confined with bubblewrap")
    if sys.platform != "linux":
        return warning_result(
            "sandbox",
            f"the level is {found.best.label}: {found.reason}; servers get limits, a clean "
            "environment and no open files of Comity, and `sandboxed` servers do not start",
            'run Comity on Linux, or run servers as images with `sandbox = "oci"`',
        )
    return warning_result(
        "sandbox",
        f"the best level for confined servers is {found.best.label}: {found.reason}",
        "install bubblewrap, and allow user namespaces",
    )


def _check_engine() -> Finding:
    engine = find_engine()
    if engine is None:
        return ok_result("containers", "neither podman nor docker is there to run images")
    if not _answers(engine):
        return warning_result(
            "containers",
            f"{engine} does not answer, so servers that are images cannot run",
            f"start its service, and see that `{Path(engine).name} version` works for your user",
        )
    return ok_result("containers", f"{engine} runs servers that are images")


def _answers(engine: str) -> bool:
    """Return whether an engine works. The program of Docker is there without its service too."""
    try:
        done = subprocess.run(
            [engine, "version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ENGINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def program_path(command: str, environ: Mapping[str, str], folder: str | None) -> str | None:
    """Return the path of the program of a server's command, as the start of the server finds it."""
    if os.sep in command:
        path = Path(folder or "", command)
        return str(path) if os.access(path, os.X_OK) and path.is_file() else None
    return shutil.which(command, path=environ.get("PATH", os.defpath))


def check_running_servers(config: Path | None) -> Iterator[Finding]:
    """Yield a finding for each server that failed in the gateway of this configuration."""
    running = running_gateway(config)
    if running is None:
        return
    try:
        servers: list[Answer] = ApiClient(running.url, CLIENT_TIMEOUT).get("servers")["servers"]
    except (Unavailable, Misconfigured):
        # The finding about the port says what answers there.
        return
    for server in servers:
        if has_failed(server):
            yield problem_result(
                f"server {server['id']}",
                f"failed: {server['reason']}",
                f"comity servers show {server['id']}",
            )


# A process that listens and does not answer in this time is not a gateway.
CLIENT_TIMEOUT: Final = timedelta(seconds=2)


def check_port(settings: Settings) -> tuple[str, Finding]:
    """Return the URL of the running gateway, if any, and whether the port is usable."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{settings.port}"
    if settings.port == 0:
        return "", ok_result("port", "a free one is taken at each start")
    running = _gateway_version_at(address)
    if running:
        return address, ok_result("port", f"a gateway runs at {address} ({running})")
    try:
        with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((settings.host, settings.port))
    except OSError as trouble:
        return "", _port_in_use(settings, trouble)
    return "", ok_result("port", f"{settings.port} is free")


def require_free_port(settings: Settings) -> None:
    """Raise Misconfigured if the port is taken, before the gateway starts servers in vain."""
    running, port = check_port(settings)
    if running:
        raise Misconfigured(
            f"port {settings.port} is taken: a gateway runs at {running} already, see "
            "`comity status`; end that one, or choose another port with --port"
        )
    if port.verdict == "problem":
        raise Misconfigured(f"port {port.message}; {port.remedy}")


def program_on_port(port: int) -> str:
    """Return which program listens on a local port, if the system tells it (Linux)."""
    with suppress(OSError, ValueError):
        inodes = set(_listening_inodes(port))
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                for handle in (process / "fd").iterdir():
                    if str(handle.readlink()) in inodes:
                        name = (process / "comm").read_text().strip()
                        return f"{name}, process {process.name}"
    return ""


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{fields[9]}]"


def _port_in_use(settings: Settings, error: OSError) -> Finding:
    if error.errno != errno.EADDRINUSE:
        return problem_result(
            "port",
            f"{settings.port} of {settings.host} cannot be listened on: {error.strerror}",
            "choose another with --host and --port",
        )
    holder = program_on_port(settings.port)
    return problem_result(
        "port",
        f"{settings.port} is held by {holder or 'another program'}, which is no gateway",
        "end that program, or choose another port with --port or in comity.toml",
    )


def check_clients(environ: Mapping[str, str], gateway_url: str) -> Iterator[Finding]:
    """Yield a finding for each client that is configured to use Comity."""
    met = False
    for file in (*user_files(environ), *project_files(Path.cwd())):
        if not file.exists:
            continue
        try:
            entries = file.entries()
        except Misconfigured as trouble:
            yield warning_result(f"client {file.client.name}", str(trouble), "put the file right")
            continue
        for name, entry in entries.items():
            if name == NAME or is_comity(entry):
                met = True
                yield _check_client(file, entry, gateway_url)
    if not met:
        yield ok_result("clients", "none calls Comity yet; `comity clients connect NAME` lets one")


def _check_client(file: ClientFile, entry: Mapping[str, Any], gateway_url: str) -> Finding:
    about = f"client {file.client.name}"
    url = entry_url(entry)
    if not url:
        return _check_client_command(about, entry)
    try:
        parts = urlsplit(url)
        found = _gateway_version_at(f"{parts.scheme}://{parts.netloc}")
    except (ValueError, Misconfigured):
        found = ""
    if found:
        return ok_result(about, f"calls the gateway at {url_without_secrets(url)}")
    if gateway_url:
        return problem_result(
            about,
            f"{shorten_path(file.path)} calls {url_without_secrets(url)}, "
            f"and the gateway is at {gateway_url}",
            f"comity clients connect {file.client.name} --url {gateway_url}",
        )
    return warning_result(
        about,
        f"calls {url_without_secrets(url)}, which does not answer",
        "start it with `comity serve`",
    )


def _check_client_command(about: str, entry: Mapping[str, Any]) -> Finding:
    command, *args = entry_words(entry) or [""]
    if program_path(command, os.environ, None) is None:
        return problem_result(
            about,
            f"starts {command!r}, which is not there",
            "connect it anew with `comity clients`",
        )
    file = args[-1] if args else ""
    if file.endswith((".toml", ".json")) and not Path(file).is_file():
        return problem_result(
            about,
            f"starts Comity with {file}, which is not there",
            "connect it anew, with --config",
        )
    return ok_result(about, "is joined to the gateway by a program that it starts")


def url_without_secrets(url: str) -> str:
    """Return a URL without the parts that may be secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    except ValueError:
        return "an address that cannot be"


def _gateway_version_at(address: str) -> str:
    """Return the version of the gateway at this URL, or an empty string."""
    try:
        return _read_version(ApiClient(address, CLIENT_TIMEOUT))
    except (Unavailable, Misconfigured):
        return ""


def _read_version(api_client: ApiClient) -> str:
    try:
        status = api_client.status()
    except Misconfigured:
        if api_client.needs_key:
            return "which shows more to clients with a key"
        raise
    return str(status.get("version", "")) if status.get("name") == "comity" else ""
