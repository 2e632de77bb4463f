"""Wiring of the identity package: authenticator, pepper, snapshot and routes from the settings."""

import asyncio
import gc
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from comity.app.authentication import HttpAuthenticator
from comity.app.records import GatewaySnapshot, open_store
from comity.app.settings import Settings
from comity.audit.log import AuditLog
from comity.config.environment import read_variable
from comity.config.files import prepare_state_file
from comity.config.secret_files import read_secret, write_secret
from comity.errors import Misconfigured
from comity.http.api import ApiRoutes
from comity.http.asgi import HttpEndpoint
from comity.http.client.proxies import ProxySettings
from comity.identity.api import RecordsApi
from comity.identity.authentication import (
    Authenticator,
    IdentityDirectory,
    TokenIssuer,
    TokenVerifier,
)
from comity.identity.http_auth import AuthMember
from comity.identity.keys import KeyAdmin, KeyUsage, mac_of_key
from comity.identity.login.sessions import BrowserSessions
from comity.identity.scim.api import ScimEndpoint
from comity.identity.scim.messages import SCIM_PATH
from comity.identity.scim.service import ScimService
from comity.identity.settings import SCIM_PREFIX
from comity.mcp.eras import TaskIds
from comity.policy.snapshot import GrantSnapshot, PolicySnapshot, SnapshotFreshness
from comity.policy.wiring import static_rules_of
from comity.servers.wiring import proxies_of
from comity.storage.stores import file_of
from comity.views.service import ViewService

VARIABLE: Final = "COMITY_PEPPER"
MIN_BYTES: Final = 16
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def refuse_open_gateway(settings: Settings) -> None:
    """Raise Misconfigured if the gateway needs no credentials but listens beyond this machine."""
    if settings.identity.mode == "local" and settings.host not in LOOPBACK:
        raise Misconfigured(
            f"refusing to listen on {settings.host} without authentication; "
            'set mode = "required" in [identity] and create keys with `comity keys '
            "create`, or listen on 127.0.0.1"
        )


def make_tokens(settings: Settings) -> TokenVerifier | None:
    # An issuer without an audience is for the sign-in of people only.
    issuers = [each for each in settings.identity.issuers if each.audience]
    if not issuers:
        return None
    return open_tokens(issuers, settings.identity.clock_skew, proxies_of(settings))


def make_reception(
    settings: Settings,
    identity: Authenticator,
    snapshot: GatewaySnapshot,
    views: ViewService,
) -> HttpAuthenticator:
    return HttpAuthenticator(
        identity,
        snapshot.grants,
        accepts_auth_member=settings.identity.accept_auth_member,
        issuers=[each.issuer for each in settings.identity.issuers if each.audience],
        scopes=[scope for each in settings.identity.issuers for scope in each.required_scopes],
        public_url=settings.identity.public_url,
        policy=snapshot,
        may_know_view=views.is_visible_to,
    )


def make_identity(
    settings: Settings,
    directory: IdentityDirectory,
    tokens: TokenVerifier | None,
    operator_token: str = "",
    sessions: BrowserSessions | None = None,
) -> Authenticator:
    is_local = settings.identity.mode == "local"
    return Authenticator(
        directory, tokens, sessions=sessions, is_local=is_local, operator_token=operator_token
    )


def make_task_names(identity: Authenticator) -> TaskIds:
    """Build task ids that every node with the same pepper recognises."""
    return TaskIds(mac_of_key(identity.pepper, b"task names"))


def make_auth_member(settings: Settings, identity: Authenticator) -> AuthMember:
    return AuthMember(identity if settings.identity.accept_auth_member else None)


def pepper_of(
    settings: Settings, beside: Path | None, environ: Mapping[str, str] = os.environ
) -> bytes:
    """Return the pepper, without which a stored MAC verifies no key.

    It comes from the environment or from the configured file. Otherwise Comity creates it once in
    the file `beside` a local store. Without a store, it lasts as long as the process, as all keys
    do.
    """
    if written := read_variable(VARIABLE, environ):
        return _long_enough(written.text().encode(), written.file)
    if file := settings.identity.pepper_file:
        return _long_enough(read_secret(file, "identity.pepper_file"), file)
    return secrets.token_bytes(32) if beside is None else _create_pepper_file(beside)


def demand_pepper(settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise Misconfigured if nodes share a store, but the operator has given no pepper.

    A shared store has no directory that all nodes can read.
    """
    if not is_pepper_given(settings, environ):
        raise Misconfigured(
            "PostgreSQL and [cluster] need a pepper that every node has. Make one with `openssl "
            f"rand -hex 32`, and give it in {VARIABLE}, or in the file that pepper_file in "
            "[identity] names"
        )


def is_pepper_given(settings: Settings, environ: Mapping[str, str] = os.environ) -> bool:
    return bool(settings.identity.pepper_file or read_variable(VARIABLE, environ))


def _long_enough(pepper: bytes, where: str) -> bytes:
    found = pepper.strip()
    if len(found) < MIN_BYTES:
        raise Misconfigured(
            f"{where} holds fewer than {MIN_BYTES} bytes; make one with `openssl rand -hex 32`"
        )
    return found


def _create_pepper_file(file: Path) -> bytes:
    """Create the pepper file. Two processes that start at once both read the same pepper."""
    if not file.exists():
        prepare_state_file(file)
        try:
            write_secret(file, secrets.token_hex(32).encode(), keep_existing=True)
        except OSError as problem:
            raise Misconfigured(
                f"the secret for keys cannot be written to {file}: {problem.strerror}; "
                "name another with pepper_file in [identity]"
            ) from None
    return _long_enough(read_secret(file, "identity.pepper_file"), str(file))


log = logging.getLogger(__name__)

USAGE_WRITE_SECONDS: Final = 30.0


def make_snapshot(settings: Settings) -> GatewaySnapshot:
    """Build the snapshot. It holds no records until `followed` has loaded them."""
    # Records that exist only in memory are never stale.
    age = settings.store.policy_max_staleness if settings.store.url else None
    certainty = SnapshotFreshness(age)
    grants = GrantSnapshot(freshness=certainty)
    return PolicySnapshot(
        open_store(settings.store.url), grants, certainty, static_rules_of(settings)
    )


@asynccontextmanager
async def open_policy_snapshot(settings: Settings) -> AsyncGenerator[GatewaySnapshot]:
    """Load the records, and follow their changes until the context ends."""
    snapshot = make_snapshot(settings)
    async with snapshot.follow():
        if settings.store.url:
            # Keep the garbage collector from scanning a hundred thousand grants again and again.
            gc.freeze()
        yield snapshot


@asynccontextmanager
async def last_use_written(
    snapshot: GatewaySnapshot, used: KeyUsage, sessions: BrowserSessions
) -> AsyncGenerator[None]:
    """Write periodically, and at the end, when keys and sessions were last used."""
    write = snapshot.records.keys.touch

    async def keep_writing() -> None:
        while True:
            await asyncio.sleep(USAGE_WRITE_SECONDS)
            try:
                await used.flush(write)
                await sessions.flush()
            except Exception:
                log.exception("Storing the last use of keys and sessions failed")

    writing = asyncio.ensure_future(keep_writing())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await used.flush(write)
        await sessions.flush()


def make_register(settings: Settings, snapshot: GatewaySnapshot) -> IdentityDirectory:
    return IdentityDirectory(snapshot.keys, snapshot.parties, pepper_for(settings))


def pepper_for(settings: Settings) -> bytes:
    """Return the pepper of the configured store."""
    if _is_pepper_shared(settings):
        demand_pepper(settings)
    return pepper_of(settings, _pepper_beside_store(settings))


def has_usable_pepper(settings: Settings) -> bool:
    """Whether the pepper exists. Raises Misconfigured if it is required or unusable."""
    if _is_pepper_shared(settings):
        demand_pepper(settings)
    beside = _pepper_beside_store(settings)
    if is_pepper_given(settings) or (beside is not None and beside.exists()):
        pepper_of(settings, beside)
        return True
    return False


def _is_pepper_shared(settings: Settings) -> bool:
    is_shared_store = bool(settings.store.url) and file_of(settings.store.url) is None
    return is_shared_store or bool(settings.cluster.url)


def pepper_file_of(settings: Settings) -> Path | None:
    """Return the file that holds the pepper, unless the environment or no file does."""
    if settings.identity.pepper_file:
        return Path(settings.identity.pepper_file).expanduser()
    return _pepper_beside_store(settings)


def _pepper_beside_store(settings: Settings) -> Path | None:
    file = file_of(settings.store.url)
    return None if file is None else file.with_name(f"{file.name}.pepper")


def identity_routes(
    snapshot: GatewaySnapshot, pepper: bytes, audit: AuditLog | None = None
) -> ApiRoutes:
    """The routes for keys and principals. Their changes are recorded in the audit log."""
    return RecordsApi(KeyAdmin(snapshot.records, pepper, snapshot.refresh, audit=audit)).routes


def scim_endpoints(
    settings: Settings,
    snapshot: GatewaySnapshot,
    http_authenticator: HttpAuthenticator,
    audit_log: AuditLog,
) -> dict[str, HttpEndpoint]:
    """The endpoint at which an identity provider writes users and groups."""
    service = ScimService(
        snapshot.records.scim,
        settings.identity.scim.get("principal_prefix", SCIM_PREFIX),
        snapshot.refresh,
        audit_log=audit_log,
    )
    public_url = settings.identity.public_url
    return {SCIM_PATH: ScimEndpoint(service, http_authenticator.require_grant, public_url)}


def open_tokens(
    issuers: Sequence[TokenIssuer], skew: timedelta, proxies: ProxySettings
) -> TokenVerifier:
    """Build the verifier of access tokens. Raises Misconfigured if the extra is not installed."""
    try:
        # The import is here because the dependency is an optional extra.
        from comity.identity import oauth
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("jwt", "cryptography"):
            raise
        raise Misconfigured(
            "to take access tokens, install what that needs: pip install 'comity[oauth]'"
        ) from None
    return oauth.open_tokens(issuers, skew, proxies)
