"""`comity config check`: a configuration, its programs and variables, and its engines."""

import asyncio
import importlib.util
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from comity.app.checks.machine import (
    Finding,
    findings_table,
    ok_result,
    problem_result,
    program_path,
    warning_result,
)
from comity.app.cluster import cluster_address
from comity.app.processes.local_bus import find_nats_server
from comity.app.processes.local_gateway import temporary_gateway
from comity.app.settings import ServerSettings, Settings
from comity.app.settings_reader import ConfigSource, LoadedConfig
from comity.cli.api_client import Answer
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import CliCommand, current_options, file_options
from comity.cli.output import (
    build_table,
    line_text,
    paragraph_text,
    shorten_path,
    show_document,
    show_output,
    state_text,
)
from comity.clients.files import read_text
from comity.clients.server_import import is_comity
from comity.cluster.connect import addresses_of
from comity.config.commands import ask_for_trust
from comity.config.document import ConfigError, ConfigErrors
from comity.config.secret_files import FILE_SUFFIX
from comity.errors import Misconfigured, Unavailable
from comity.http.client.proxies import ProxySettings
from comity.identity.authentication import TokenIssuer
from comity.identity.wiring import has_usable_pepper
from comity.policy.grants import ANY, split_target
from comity.secrets.backends import open_key_services
from comity.secrets.envelope import probe_key
from comity.secrets.settings import PEPPER as PEPPER_KEY
from comity.servers.sandbox.oci import image_problem
from comity.servers.wiring import describe_server, proxies_of
from comity.storage import schema, stores
from comity.telemetry.setup import is_asked_for
from comity.toolkit.text import count_noun, start_sentence

ENGINE_TIMEOUT_SECONDS: Final = 15.0
_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "postgres": ("asyncpg",),
    "nats": ("nats",),
    "workers": ("nats",),
    "oauth": ("jwt",),
    "models": ("anthropic", "openai"),
    "otel": ("opentelemetry",),
    "semantic": ("numpy", "onnxruntime"),
    "validators": ("tree_sitter", "tree_sitter_bash", "wcmatch"),
}


def check_engines(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return one finding for each engine that the settings name."""
    missing = dict(_missing_extras(settings, environ))
    found = [*missing.values(), *_check_pepper(settings), *_check_keys(settings, environ)]
    if not missing.keys() & {"sqlite", "postgres"}:
        found += _check_store(settings.store.url)
    if "nats" not in missing:
        found += _check_nats(settings)
    if "workers" not in missing:
        found += _check_workers(settings)
    if "oauth" not in missing:
        found += [_check_issuer(each, proxies_of(settings)) for each in settings.identity.issuers]
    return found


def _missing_extras(
    settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[str, Finding]]:
    for extra, used_by in _needed_extras(settings, environ).items():
        absent = [name for name in _PACKAGES[extra] if importlib.util.find_spec(name) is None]
        if not absent:
            continue
        # A gateway starts without telemetry, and warns about it.
        tell = warning_result if extra == "otel" else problem_result
        yield (
            extra,
            tell(
                f"extra {extra}",
                f"{used_by} needs packages that are not installed: {', '.join(absent)}",
                f"pip install 'comity[{extra}]'",
            ),
        )


def _needed_extras(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the required extras, each with the setting that requires it."""
    apis = {model.api for model in settings.models}
    tools = [tool for server in settings.servers for tool in server.tools.values()]
    is_sqlite = stores.file_of(settings.store.url) is not None
    needs = {
        "postgres": ("the store", bool(settings.store.url) and not is_sqlite),
        "nats": ("[cluster]", bool(settings.cluster.url)),
        "workers": ("workers", settings.workers > 1),
        "oauth": ("[[identity.issuers]]", bool(settings.identity.issuers)),
        "models": ("[[models]]", bool(apis & {"anthropic", "openai"})),
        "otel": ("telemetry", settings.telemetry.traces or is_asked_for(environ)),
        "semantic": ("semantic search", settings.discovery.embedder == "minilm"),
        "validators": ("a tool with validators", any(tool.validators for tool in tools)),
    }
    return {extra: used_by for extra, (used_by, is_needed) in needs.items() if is_needed}


def _check_pepper(settings: Settings) -> Iterator[Finding]:
    try:
        if has_usable_pepper(settings):
            yield ok_result("pepper", "is set")
    except Misconfigured as trouble:
        yield problem_result("pepper", str(trouble), "")


def _check_keys(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check each key of stored credentials. The check of the pepper covers its key."""
    for name in settings.secrets.keys:
        if name == PEPPER_KEY:
            continue
        try:
            (service,) = open_key_services([name], b"", proxies_of(settings), environ)
            _run_with_timeout(probe_key(service))
            yield ok_result("key of stored credentials", f"{name} works")
        except (Misconfigured, Unavailable, TimeoutError) as trouble:
            yield problem_result(
                "key of stored credentials",
                f"{name}: {_describe_exception(trouble)}",
                "put `keys` in [secrets] right, or start the service",
            )


def _check_store(url: str) -> Iterator[Finding]:
    if not url:
        return
    told = stores.describe_store(url)
    try:
        found = _run_with_timeout(stores.current_schema(url))
    except (Misconfigured, Unavailable, OSError, TimeoutError) as trouble:
        yield problem_result(
            "store",
            f"{told}: {_describe_exception(trouble)}",
            "start it, or put the url in [store] right",
        )
        return
    file, newest = stores.file_of(url), schema.newest_revision()
    if found == newest:
        yield ok_result("store", f"{told}: schema {found}, up to date")
    elif not schema.is_known(found):
        yield problem_result(
            "store",
            f"{told}: it has schema {found:.40}, which a newer version of Comity made",
            "run that version",
        )
    elif file is not None:
        deed = "creates it" if found == stores.NO_TABLES else f"upgrades it to schema {newest}"
        yield ok_result("store", f"{told}: `comity serve` {deed}")
    else:
        has = "it has no tables" if found == stores.NO_TABLES else f"it has schema {found}"
        yield problem_result(
            "store", f"{told}: {has}, and Comity needs {newest}", "run `comity db migrate`"
        )


def _check_workers(settings: Settings) -> Iterator[Finding]:
    if settings.workers == 1 or settings.cluster.url:
        return
    try:
        program = find_nats_server()
    except Misconfigured as trouble:
        yield problem_result("workers", str(trouble), "")
    else:
        yield ok_result("workers", f"{settings.workers} processes, which {program} joins")


def _check_nats(settings: Settings) -> Iterator[Finding]:
    if not settings.cluster.url:
        return
    try:
        addresses = addresses_of(cluster_address(settings, b""))
    except Misconfigured as trouble:
        yield problem_result("NATS", str(trouble), "")
        return
    # Imported here because it needs an extra. The check above reports a missing extra.
    from comity.cluster.nats import connection

    for server in addresses.servers:
        try:
            version = _run_with_timeout(connection.usable_version(server, addresses))
        except (Misconfigured, Unavailable, TimeoutError) as trouble:
            yield problem_result(
                "NATS",
                f"{server.url}: {_describe_exception(trouble)}",
                f"start NATS {connection.oldest_version()} or newer with JetStream, or put url in "
                "[cluster] right",
            )
        else:
            yield ok_result("NATS", f"{server.url}: version {version}, with JetStream")


def _check_issuer(issuer: TokenIssuer, proxies: ProxySettings) -> Finding:
    about = f"issuer {urlsplit(issuer.issuer).hostname}"
    # Imported here because it needs an extra. The check above reports a missing extra.
    from comity.identity.login.openid import discover

    # Imported here for the same reason.
    from comity.identity.oauth import count_keys

    async def count() -> int:
        if not issuer.client_id:
            return await count_keys(issuer, proxies)
        found = await discover(issuer.issuer, proxies)
        known = replace(issuer, jwks_url=issuer.jwks_url or found.jwks_uri)
        return await count_keys(known, proxies)

    try:
        key_count = _run_with_timeout(count())
    except Unavailable as trouble:
        return problem_result(about, str(trouble), "check the issuer, its jwks_url and the proxy")
    return ok_result(about, f"has {count_noun(key_count, 'key')}")


def _run_with_timeout[T](work: Awaitable[T]) -> T:
    """Return the result of work, with a time limit."""

    async def bounded() -> T:
        async with asyncio.timeout(ENGINE_TIMEOUT_SECONDS):
            return await work

    return asyncio.run(bounded())


def _describe_exception(trouble: BaseException) -> str:
    return "it does not answer" if isinstance(trouble, TimeoutError) else str(trouble)


LAST_LINES: Final = 10


@click.command("check", cls=CliCommand)
@click.option("--start", is_flag=True, help="Start every server once.")
@click.option("--no-connect", is_flag=True, help="Do not connect to the database, NATS or issuers.")
@file_options
def check_command(*, start: bool, no_connect: bool) -> int:
    """Check a configuration and the systems that it names.

    The command connects to the database, NATS and the issuers. It tests the database schema, the
    pepper, the version of NATS, the keys of issuers, and whether the needed extras are installed.
    Exits with 1 if there is a mistake, if a test fails, or if a server is not ready. A file of this
    folder needs your approval, see `comity config trust`.

    \b
    Examples:
      comity config check
      comity config check comity.toml --start
      comity config check --no-connect
    """
    config = current_options().config
    if config is not None and not config.exists():
        raise Misconfigured(f"{config}: there is no such file; check the path")
    # Reading a file has effects too: it names the sources of its secrets.
    source = ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True)
    try:
        ask_for_trust(source)
        found = source.load()
    except Misconfigured as problem:
        return _print_config_errors(problem)
    engines = [] if no_connect else check_engines(found.settings)
    engines += check_views(found.settings)
    started: list[Answer] | None = None
    if start:
        started, of_views = _start_servers(found)
        engines += of_views
    tested = [each.as_json() for each in engines]
    show_document(
        {**_as_json(found), "mistakes": [], "engines": tested, "started": started},
        lambda: _print_report(found, engines, started),
        [str(path) for path in found.files],
    )
    failed = any(server["state"] != "connected" for server in started or ())
    return FAILED if failed or _problems(engines) else DONE


def _problems(engines: list[Finding]) -> int:
    return sum(each.verdict == "problem" for each in engines)


def config_errors_of(problem: Misconfigured) -> list[ConfigError]:
    """Return the single errors, or an empty list if the problem is of another kind."""
    told: object = problem.args[0]
    if isinstance(told, ConfigErrors):
        return told.found
    return [told] if isinstance(told, ConfigError) else []


def _print_config_errors(problem: Misconfigured) -> int:
    mistakes = config_errors_of(problem)
    if not mistakes:
        raise problem
    listed = [
        {
            "file": mistake.file,
            "line": mistake.line,
            "key": mistake.keys,
            "problem": mistake.problem,
        }
        for mistake in mistakes
    ]

    def print_table() -> None:
        show_output(*(line_text(mistake) for mistake in mistakes))
        show_output("", line_text(f"{count_noun(len(mistakes), 'mistake')}.", "bold red"))

    files = sorted({each.file for each in mistakes})
    show_document({"files": files, "mistakes": listed}, print_table, files)
    return FAILED


def _start_servers(loaded_config: LoadedConfig) -> tuple[list[Answer], list[Finding]]:
    """Start all servers once. Returns their states, and the problems of views with their tools."""
    with temporary_gateway(loaded_config.settings, lambda _: True) as gateway:
        ids = [server["id"] for server in gateway.get("servers")["servers"]]
        problems = [
            problem_result(f"view {view['name']}", said, "change its entry in [[views]]")
            for view in gateway.get("views")["views"]
            for said in view["problems"]
        ]
        return [gateway.get("servers", each) for each in ids], problems


def check_views(settings: Settings) -> Iterator[Finding]:
    """Return a finding for each server that a view names and the configuration does not."""
    known = {server.id for server in settings.servers if not server.disabled}
    for view in settings.views:
        named = [each.target for each in view.overrides]
        servers = {split_target(target)[0] for target in (*view.select, *named)}
        for server in sorted(each for each in servers - known if ANY not in each):
            yield warning_result(
                f"view {view.name}",
                f"there is no server {server!r} in the configuration",
                "correct the name, unless the server is registered at run time",
            )


def _as_json(loaded_config: LoadedConfig) -> dict[str, object]:
    return {
        "files": [str(path) for path in loaded_config.files],
        "skipped_files": [str(path) for path in loaded_config.skipped_files],
        "listen": f"{loaded_config.settings.host}:{loaded_config.settings.port}",
        "servers": [
            {"id": server.id, "disabled": server.disabled, **describe_server(server)}
            for server in loaded_config.settings.servers
        ],
    }


def _print_report(
    loaded_config: LoadedConfig, engines: list[Finding], started: list[Answer] | None
) -> None:
    for line in loaded_config.describe():
        show_output(line_text(start_sentence(line)))
    rows = [_row(server) for server in loaded_config.settings.servers]
    if rows:
        show_output("", build_table(("SERVER", "TRANSPORT", "ADDRESS", ""), rows))
    if engines:
        show_output("", findings_table(engines))
    if started is not None:
        _print_started_servers(started)
    if count := _problems(engines):
        show_output("", line_text(f"{count_noun(count, 'problem')} found.", "bold red"))
    elif started is not None:
        return
    elif rows:
        names = ", ".join(shorten_path(path) for path in loaded_config.files)
        show_output("", line_text(f"No mistakes in {names}.", "bold green"))
    else:
        show_output("", line_text("No mistakes, but there are no servers.", "yellow"))


def _row(server: ServerSettings) -> tuple[str, str, str, str]:
    how = describe_server(server)
    return server.id, how["transport"], how["reached"], "disabled" if server.disabled else ""


def _print_started_servers(started: list[Answer]) -> None:
    rows = [
        (each["id"], state_text(each["state"], each["reason"]), str(each["tools"]), each["reason"])
        for each in started
    ]
    show_output("", build_table(("STARTED", "STATE", "TOOLS", "REASON"), rows))
    failed = [each for each in started if each["state"] != "connected"]
    for each in failed:
        if each["lines"]:
            show_output("", line_text(f"Last lines of {each['id']}:", "bold"))
            show_output(paragraph_text("\n".join(each["lines"][-LAST_LINES:])))
    if failed:
        show_output(
            "", line_text(f"Not ready: {', '.join(each['id'] for each in failed)}.", "bold red")
        )
    else:
        show_output("", line_text("Every server started and is ready.", "bold green"))


CONNECT_TIMEOUT_SECONDS: Final = 5.0
MAX_CONCURRENT_CHECKS: Final = 16
INSTALL_HINTS: Final = {
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
# A variable with an empty default: without it, the value is empty.
_EMPTY_DEFAULT: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*):-\}")


def check_configuration(source: ConfigSource) -> tuple[Settings | None, list[Finding]]:
    """Return the settings, or None, and the findings about them."""
    try:
        found = source.load()
    except Misconfigured as trouble:
        return None, list(_config_error_findings(trouble))
    told = [ok_result("configuration", line) for line in found.describe()[:1]]
    told += [
        warning_result("configuration", line, "remove the wrong one")
        for line in found.describe()[1:]
    ]
    if not [server for server in found.settings.servers if not server.disabled]:
        told.append(
            warning_result("configuration", "it names no servers", "add one, or run `comity init`")
        )
    return found.settings, [
        *told,
        *_check_variables(found, source.environ),
        *_check_servers(found.settings),
        *check_views(found.settings),
    ]


def _config_error_findings(trouble: Misconfigured) -> Iterator[Finding]:
    mistakes = config_errors_of(trouble)
    if not mistakes:
        yield problem_result("configuration", str(trouble), "write one with `comity init`")
    for mistake in mistakes:
        # The error message itself ends with the remedy.
        told, _, remedy = str(mistake).rpartition("; ")
        yield problem_result("configuration", told or str(mistake), remedy if told else "")


def _check_variables(loaded_config: LoadedConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    for path in loaded_config.files:
        try:
            named = dict.fromkeys(_EMPTY_DEFAULT.findall(read_text(path)))
        except Misconfigured:
            continue
        for name in named:
            if not environ.get(name) and not environ.get(name + FILE_SUFFIX):
                yield warning_result(
                    f"variable {name}",
                    f"is not set, so {shorten_path(path)} puts nothing in its place",
                    "set it where `comity serve` starts, or write the value into the file",
                )


def _check_servers(settings: Settings) -> Iterator[Finding]:
    enabled = [server for server in settings.servers if not server.disabled]
    with ThreadPoolExecutor(MAX_CONCURRENT_CHECKS) as threads:
        yield from threads.map(_check_server, enabled)


def _check_server(server: ServerSettings) -> Finding:
    about = f"server {server.id}"
    entry = {"command": server.command, "args": list(server.args), "url": server.url}
    if is_comity(entry):
        return problem_result(
            about,
            "points at this gateway (loop)",
            "remove it from the configuration",
        )
    if server.transport == "stdio":
        return _check_program(about, server)
    if server.transport == "openapi" and not server.openapi.startswith(("http://", "https://")):
        if not Path(server.openapi).expanduser().is_file():
            return problem_result(
                about, f"its document {server.openapi} is not there", "put `openapi` right"
            )
        if not server.url:
            return ok_result(about, f"is described by {shorten_path(Path(server.openapi))}")
    return _check_address(about, server.url or server.openapi)


def _check_program(about: str, server: ServerSettings) -> Finding:
    if server.sandbox == "oci":
        problem = image_problem(server.command)
        if problem is not None:
            return problem_result(about, problem, "write the digest into `command`")
        return ok_result(about, "is a container image")
    if server.cwd and not Path(server.cwd).is_dir():
        return problem_result(about, f"its folder {server.cwd} is not there", "put the cwd right")
    # Comity looks for the program in the PATH of the server's own environment.
    found = program_path(server.command, {**os.environ, **server.env}, server.cwd)
    if found is None:
        name = Path(server.command).name
        remedy = INSTALL_HINTS.get(name, "install it, or write its whole path")
        return problem_result(about, f"there is no program {server.command!r}", remedy)
    return ok_result(about, f"starts {shorten_path(Path(found))}")


def _check_address(about: str, url: str) -> Finding:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    try:
        with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_SECONDS) as plain:
            if secure:
                context = ssl.create_default_context()
                context.wrap_socket(plain, server_hostname=host).close()
    except socket.gaierror:
        return problem_result(about, f"cannot resolve {host}", "check the url, and the network")
    except ssl.SSLError as trouble:
        return problem_result(
            about,
            f"{host} cannot be trusted: {trouble.reason or 'its certificate is refused'}",
            "check the url; a company's own authority is named in SSL_CERT_FILE",
        )
    except OSError as trouble:
        why = "it stays silent" if isinstance(trouble, TimeoutError) else trouble.strerror
        return problem_result(
            about, f"{host}:{port} is not reached: {why}", "start it, or check the url and proxies"
        )
    return ok_result(about, f"{host}:{port} is reached")
