"""What the doctor looks at of a configuration: mistakes, programs, variables, addresses."""

import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from comity.cli.check import mistakes_of
from comity.cli.client_files import read_text
from comity.cli.findings import Finding, problem, warning, well
from comity.cli.importing import is_comity
from comity.cli.machine import program_path
from comity.cli.show import short
from comity.config import Found, ServerSettings, Settings, Source
from comity.wire.errors import Misconfigured

REACH_SECONDS: Final = 5.0
AT_ONCE: Final = 16
INSTALLED_BY: Final = {
    "npx": "install Node.js, which brings it",
    "node": "install Node.js",
    "bunx": "install Bun, which brings it",
    "uvx": "install uv, which brings it",
    "uv": "install uv",
    "docker": "install Docker, and see that its daemon runs",
    "podman": "install Podman",
    "deno": "install Deno",
    "python": "install Python, or write python3",
}
# A variable that may be absent, and then is nothing at all.
_EMPTY_DEFAULT: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*):-\}")


def look_at_the_configuration(source: Source) -> tuple[Settings | None, list[Finding]]:
    """The settings, if there are any, and what there is to say of them."""
    try:
        found = source.find()
    except Misconfigured as trouble:
        return None, list(_mistaken(trouble))
    told = [well("configuration", line) for line in found.told()[:1]]
    told += [
        warning("configuration", line, "remove what is not meant") for line in found.told()[1:]
    ]
    if not [server for server in found.settings.servers if not server.disabled]:
        told.append(
            warning("configuration", "it names no servers", "add one, or run `comity init`")
        )
    return found.settings, [*told, *_variables(found, source.environ), *_servers(found.settings)]


def _mistaken(trouble: Misconfigured) -> Iterator[Finding]:
    mistakes = mistakes_of(trouble)
    if not mistakes:
        yield problem("configuration", str(trouble), "write one with `comity init`")
    for mistake in mistakes:
        # A mistake says what to do about it itself.
        told, _, remedy = str(mistake).rpartition("; ")
        yield problem("configuration", told or str(mistake), remedy if told else "")


def _variables(found: Found, environ: Mapping[str, str]) -> Iterator[Finding]:
    for path in found.files:
        try:
            named = dict.fromkeys(_EMPTY_DEFAULT.findall(read_text(path)))
        except Misconfigured:
            continue
        for name in named:
            if not environ.get(name):
                yield warning(
                    f"variable {name}",
                    f"is not set, so {short(path)} puts nothing in its place",
                    "set it where `comity serve` starts, or write the value into the file",
                )


def _servers(settings: Settings) -> Iterator[Finding]:
    enabled = [server for server in settings.servers if not server.disabled]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield from threads.map(_server, enabled)


def _server(server: ServerSettings) -> Finding:
    about = f"server {server.id}"
    entry = {"command": server.command, "args": list(server.args), "url": server.url}
    if is_comity(entry):
        return problem(
            about,
            "is Comity itself, which would go round in circles",
            "remove it from the configuration",
        )
    return _program(about, server) if server.transport == "stdio" else _address(about, server)


def _program(about: str, server: ServerSettings) -> Finding:
    if server.cwd and not Path(server.cwd).is_dir():
        return problem(about, f"its folder {server.cwd} is not there", "put the cwd right")
    # A server's own PATH is the one that its program is looked for in.
    found = program_path(server.command, {**os.environ, **server.env}, server.cwd)
    if found is None:
        name = Path(server.command).name
        remedy = INSTALLED_BY.get(name, "install it, or write its whole path")
        return problem(about, f"there is no program {server.command!r}", remedy)
    return well(about, f"starts {short(Path(found))}")


def _address(about: str, server: ServerSettings) -> Finding:
    parts = urlsplit(server.url)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    try:
        with socket.create_connection((host, port), timeout=REACH_SECONDS) as plain:
            if secure:
                context = ssl.create_default_context()
                context.wrap_socket(plain, server_hostname=host).close()
    except socket.gaierror:
        return problem(about, f"nobody knows the host {host}", "check the url, and the network")
    except ssl.SSLError as trouble:
        return problem(
            about,
            f"{host} cannot be trusted: {trouble.reason or 'its certificate is refused'}",
            "check the url; a company's own authority is named in SSL_CERT_FILE",
        )
    except OSError as trouble:
        why = "it stays silent" if isinstance(trouble, TimeoutError) else trouble.strerror
        return problem(
            about, f"{host}:{port} is not reached: {why}", "start it, or check the url and proxies"
        )
    return well(about, f"{host}:{port} is reached")
