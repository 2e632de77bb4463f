"""What `check` and `doctor` test of the engines that a configuration names.

These are the store and its schema, the pepper, NATS, the issuers of access tokens, and the extras
that all of them need. Nothing is written, and no server is started.
"""

import asyncio
import importlib
import importlib.util
import os
from collections.abc import Awaitable, Iterator, Mapping
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from comity.adapters import stores
from comity.adapters.buses import addresses_of
from comity.adapters.nats.addresses import Addresses, Server
from comity.adapters.telemetry import is_asked_for
from comity.app.clustering import reached_at
from comity.app.reaching import proxies_of
from comity.app.recording import has_usable_pepper
from comity.cli.findings import Finding, problem, warning, well
from comity.config import Settings
from comity.ports.identity import Issuer
from comity.rules.phrases import count_noun
from comity.rules.proxies import Proxies
from comity.wire.errors import Misconfigured, Unavailable

PATIENCE_SECONDS: Final = 15.0
_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "sqlite": ("aiosqlite", "alembic", "cryptography", "sqlalchemy"),
    "postgres": ("asyncpg", "alembic", "cryptography", "sqlalchemy"),
    "nats": ("nats", "cryptography"),
    "oauth": ("jwt", "cryptography"),
    "models": ("anthropic", "openai"),
    "otel": ("opentelemetry",),
    "semantic": ("numpy", "onnxruntime"),
    "validators": ("tree_sitter", "tree_sitter_bash", "wcmatch"),
}


class _Versions(Protocol):
    def oldest_version(self) -> str: ...
    async def usable_version(self, server: Server, addresses: Addresses) -> str: ...


class _Keys(Protocol):
    def count_keys(self, issuer: Issuer, proxies: Proxies) -> int: ...


def look_at_the_engines(
    settings: Settings, environ: Mapping[str, str] = os.environ
) -> list[Finding]:
    """One finding for each engine that the settings name; what they do not name is left out."""
    missing = dict(_missing_extras(settings, environ))
    found = [*missing.values(), *_pepper(settings)]
    if not missing.keys() & {"sqlite", "postgres"}:
        found += _store(settings.store_url)
    if "nats" not in missing:
        found += _nats(settings)
    if "oauth" not in missing:
        found += [_issuer(each, proxies_of(settings)) for each in settings.issuers]
    return found


def _missing_extras(
    settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[str, Finding]]:
    for extra, used_by in _needed_extras(settings, environ).items():
        absent = [name for name in _PACKAGES[extra] if importlib.util.find_spec(name) is None]
        if not absent:
            continue
        # A gateway starts without telemetry, and says so.
        tell = warning if extra == "otel" else problem
        yield (
            extra,
            tell(
                f"extra {extra}",
                f"{used_by} needs packages that are not installed: {', '.join(absent)}",
                f"pip install 'comity[{extra}]'",
            ),
        )


def _needed_extras(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The extras that these settings need, each with the setting that needs it."""
    apis = {model.api for model in settings.models}
    tools = [tool for server in settings.servers for tool in server.tools.values()]
    is_sqlite = stores.file_of(settings.store_url) is not None
    needs = {
        "sqlite": ("the store", is_sqlite),
        "postgres": ("the store", bool(settings.store_url) and not is_sqlite),
        "nats": ("[cluster]", bool(settings.cluster_url)),
        "oauth": ("[[identity.issuers]]", bool(settings.issuers)),
        "models": ("[[models]]", bool(apis & {"anthropic", "openai"})),
        "otel": ("telemetry", settings.traces or is_asked_for(environ)),
        "semantic": ("search by meaning", settings.embedder == "minilm"),
        "validators": ("a tool with validators", any(tool.validators for tool in tools)),
    }
    return {extra: used_by for extra, (used_by, is_needed) in needs.items() if is_needed}


def _pepper(settings: Settings) -> Iterator[Finding]:
    try:
        if has_usable_pepper(settings):
            yield well("pepper", "is set")
    except Misconfigured as trouble:
        yield problem("pepper", str(trouble), "")


def _store(url: str) -> Iterator[Finding]:
    if not url:
        return
    told = stores.described(url)
    try:
        found = _run(stores.current(url))
    except (Misconfigured, Unavailable, OSError, TimeoutError) as trouble:
        yield problem(
            "store", f"{told}: {_words(trouble)}", "start it, or put the url in [store] right"
        )
        return
    file, newest = stores.file_of(url), stores.newest()
    if found == newest:
        yield well("store", f"{told}: schema {found}, up to date")
    elif not stores.is_known(found):
        yield problem(
            "store",
            f"{told}: it has schema {found:.40}, which a newer version of Comity made",
            "run that version",
        )
    elif file is not None:
        deed = "creates it" if found == stores.NO_TABLES else f"upgrades it to schema {newest}"
        yield well("store", f"{told}: `comity serve` {deed}")
    else:
        has = "it has no tables" if found == stores.NO_TABLES else f"it has schema {found}"
        yield problem(
            "store", f"{told}: {has}, and Comity needs {newest}", "run `comity store upgrade`"
        )


def _nats(settings: Settings) -> Iterator[Finding]:
    if not settings.cluster_url:
        return
    try:
        addresses = addresses_of(reached_at(settings, b""))
    except Misconfigured as trouble:
        yield problem("NATS", str(trouble), "")
        return
    versions = cast("_Versions", importlib.import_module("comity.adapters.nats.versions"))
    for server in addresses.servers:
        try:
            version = _run(versions.usable_version(server, addresses))
        except (Misconfigured, Unavailable, TimeoutError) as trouble:
            yield problem(
                "NATS",
                f"{server.url}: {_words(trouble)}",
                f"start NATS {versions.oldest_version()} or newer with JetStream, or put url in "
                "[cluster] right",
            )
        else:
            yield well("NATS", f"{server.url}: version {version}, with JetStream")


def _issuer(issuer: Issuer, proxies: Proxies) -> Finding:
    about = f"issuer {urlsplit(issuer.issuer).hostname}"
    keys = cast("_Keys", importlib.import_module("comity.adapters.jwks"))
    try:
        count = keys.count_keys(issuer, proxies)
    except Unavailable as trouble:
        return problem(about, str(trouble), "check the issuer, its jwks_url and the proxy")
    return well(about, f"offers {count_noun(count, 'key')}")


def _run[T](work: Awaitable[T]) -> T:
    """The result of work that may not take forever."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await work

    return asyncio.run(bounded())


def _words(trouble: BaseException) -> str:
    return "it does not answer" if isinstance(trouble, TimeoutError) else str(trouble)
