"""Builds the audit log from the settings: its store, its signing key and its redaction."""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.audit.chain import CheckpointSigner
from comity.audit.events import AuditEvent
from comity.audit.integrity import AuditCheckpointer, AuditRetention
from comity.audit.log import AuditLog, CommitSettings, Redact
from comity.audit.signing import LastSignedFile, load_or_make, open_witness
from comity.audit.verify import CheckpointInterval, name_of
from comity.catalog.tool_reviews import ToolReviewService
from comity.config.files import prepare_state_file, state_folder
from comity.config.secret_files import read_secret
from comity.errors import Misconfigured
from comity.events.audit_feed import AuditFeed, AuditServerFeed, ServerAuditReports
from comity.gateway.call_audit import ArgumentAuditLevel, AuditClass, CallAudit
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, View
from comity.identity.keys import mac_of_key
from comity.mcp.actors import Actor
from comity.policy.risk import Risk
from comity.policy.snapshot import PolicyEngine
from comity.policy.wiring import ServerPolicyService
from comity.redaction.redact import Redactor
from comity.redaction.secrets import is_secret_name
from comity.secrets.wiring import key_texts
from comity.servers.service import ServerService
from comity.servers.wiring import proxies_of
from comity.storage.stores import file_of
from comity.telemetry.logging import MAX_EXCEPTION_LENGTH, set_line_redactor

log = logging.getLogger(__name__)

KEY_NAME: Final = "audit-log.key"
LONG: Final = 20
"""A single word of this length may be a secret, whatever its name."""


@dataclass(frozen=True, slots=True)
class AuditLogComponents:
    """The audit log, and what removes secrets."""

    audit_log: AuditLog
    redactor: Redactor
    checkpoints: AuditCheckpointer | None = None

    @property
    def redact(self) -> Redact:
        return self.redactor.redact

    def learn_secrets(self, settings: Settings) -> None:
        """Remove the secrets of a changed configuration too, from now on."""
        self.redactor.add_known(known_secrets(settings, b""))


@asynccontextmanager
async def open_audit_log(
    settings: Settings, snapshot: GatewaySnapshot, pepper: bytes
) -> AsyncGenerator[AuditLogComponents]:
    """Open the audit log: until the exit it is committed, signed and pruned."""
    signer = make_signer(settings)
    redactor = Redactor(known_secrets(settings, pepper), _redaction_key(pepper))
    set_line_redactor(partial(redactor.redact_text, longest=MAX_EXCEPTION_LENGTH))
    node = node_of(settings, signer)
    audit_log = AuditLog(
        snapshot.records.audit_log,
        node,
        _pace(settings),
        redact=redactor.redact,
        is_durable=bool(settings.store.url),
    )
    async with AsyncExitStack() as ending:
        checkpoints = None
        if signer is not None:
            checkpoints = _checkpoints(settings, audit_log, signer)
            # After the last commit, so that it is signed too.
            ending.push_async_callback(checkpoints.close)
        await ending.enter_async_context(audit_log.run())
        if settings.audit.retention:
            thinning = asyncio.ensure_future(
                AuditRetention(audit_log, settings.audit.retention).keep_on()
            )
            ending.callback(thinning.cancel)
        yield AuditLogComponents(audit_log, redactor, checkpoints)


def recorded_routes(
    settings: Settings,
    snapshot: GatewaySnapshot,
    pepper: bytes,
    make_routes: Callable[[AuditLog | None], ApiRoutes],
) -> ApiRoutes:
    """Return routes on a store without a gateway. Their changes are recorded and signed.

    Routes that only read are made without an audit log, because reading creates no signing key.
    """

    def over_store(route: ApiRoute[Any]) -> ApiRoute[Any]:
        async def handle(request: ApiRequest[Any]) -> View:
            await snapshot.refresh()
            if route.method == "GET":
                return await route.handler(request)
            async with open_audit_log(settings, snapshot, pepper) as audit_log_components:
                recorded = make_routes(audit_log_components.audit_log)
                same = next(each for each in recorded if each.address == route.address)
                return await same.handler(request)

        return replace(route, handler=handle)

    return tuple(map(over_store, make_routes(None)))


def _redaction_key(pepper: bytes) -> bytes:
    return mac_of_key(pepper, b"redaction")


def make_signer(settings: Settings) -> CheckpointSigner | None:
    """Load or create the signing key; None if the log is not stored."""
    file = signing_key_file(settings)
    if file is None:
        return None
    is_in_state_folder = not settings.audit.key_file and file_of(settings.store.url) is None
    prepare_state_file(file)
    is_new = not file.exists()
    signer = load_or_make(file)
    if is_new:
        # An operator sees a key beside a SQLite file, but may overlook one in the state folder.
        log.log(
            logging.WARNING if is_in_state_folder else logging.INFO,
            "Created the key that signs the audit log: %s. Back it up. If it is lost, Comity "
            "creates another and begins a new chain; earlier entries stay provable with the "
            "public key %s.",
            file,
            signer.key,
        )
    return signer


def signing_key_file(settings: Settings) -> Path | None:
    """The file of the signing key: as the settings say, or beside a SQLite file.

    The key for a log in PostgreSQL is in this user's state folder: each machine has its own.
    """
    if settings.audit.key_file:
        return Path(settings.audit.key_file)
    if not settings.store.url:
        return None
    file = file_of(settings.store.url)
    return state_folder() / KEY_NAME if file is None else file.with_name(f"{file.name}.audit-key")


def node_of(settings: Settings, signer: CheckpointSigner | None) -> str:
    """The name of this node's chain: from the settings, its key or its host name."""
    if settings.audit.node:
        return settings.audit.node
    return socket.gethostname() if signer is None else name_of(signer.key)


def known_secrets(settings: Settings, pepper: bytes) -> Iterator[str]:
    """The secrets that the gateway knows from its settings."""
    yield pepper.decode("latin-1")
    yield pepper.hex()
    yield from key_texts(settings)
    yield from _in_address(settings.store.url)
    for notifier in settings.approvals.notifiers:
        # The path of such a URL lets its holder post.
        yield from (notifier.url,) if urlsplit(notifier.url).path.strip("/") else ()
        yield from _in_address(notifier.url)
        for file in filter(None, notifier.secret_files):
            yield from _lines_of(file)
    for hook in settings.inbound_webhooks:
        yield from _lines_of(hook.secret_file)
    for server in settings.servers:
        yield from _in_address(server.url)
        for name, value in (*server.env.items(), *server.headers.items()):
            if _may_be_secret(name, value):
                yield value
                # In `Bearer XYZ` the second word is the secret.
                yield value.rpartition(" ")[2]


def _lines_of(file: str) -> Iterator[str]:
    """The secrets in a file. If it cannot be read, its user reports that."""
    with suppress(Misconfigured):
        yield from read_secret(file, "", may_be_shared=True).decode("latin-1").split()


def _may_be_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or (len(value) >= LONG and not set(value) & set(" /\\"))


def _in_address(url: str) -> Iterator[str]:
    try:
        password = urlsplit(url).password
    except ValueError:
        return
    if password:
        yield password


def _pace(settings: Settings) -> CommitSettings:
    # Half of the promised time: the other half is for the commit.
    linger = min(settings.audit.flush_interval / 2, timedelta(seconds=10))
    return CommitSettings(linger, settings.audit.write_timeout, settings.audit.max_queued)


def _checkpoints(
    settings: Settings, audit_log: AuditLog, signer: CheckpointSigner
) -> AuditCheckpointer:
    where = settings.audit.checkpoint_mirror
    witnesses = [open_witness(where, proxies_of(settings))] if where else []
    interval = CheckpointInterval(
        settings.audit.checkpoint_entries, settings.audit.checkpoint_interval
    )
    key_file = signing_key_file(settings)
    last = None if key_file is None else LastSignedFile(last_signed_file(key_file))
    return AuditCheckpointer(audit_log, signer, witnesses, interval, last)


def last_signed_file(key_file: Path) -> Path:
    """The file that remembers the last checkpoint which this key signed."""
    return key_file.with_name(f"{key_file.name}.last-signed")


@dataclass(frozen=True, slots=True)
class AuditComponents:
    """The audit feeds for clients and servers, and what servers report themselves."""

    notices: AuditFeed
    servers: AuditServerFeed
    testimony: ServerAuditReports


def build_call_audit(
    settings: Settings,
    audit_log: AuditLog,
    pepper: bytes,
    tools: ToolReviewService,
    is_awaited: Callable[[AuditEvent], bool],
) -> CallAudit:
    """Build the service that records each call."""
    audit = settings.audit
    call_audit = CallAudit(
        audit_log,
        ArgumentAuditLevel(audit.arguments),
        _redaction_key(pepper),
        classes={
            Risk.SAFE: AuditClass(audit.safe),
            Risk.MODERATE: AuditClass(audit.moderate),
            Risk.DANGEROUS: AuditClass(audit.dangerous),
        },
        known_tool=partial(_known, tools),
        must_await=is_awaited,
    )
    call_audit.set_run_name(secrets.token_hex(8))
    return call_audit


def build_audit(
    audit_log: AuditLog,
    grants: PolicyEngine,
    is_counted: Callable[[Actor], bool],
    servers: ServerService,
    server_policies: ServerPolicyService,
) -> AuditComponents:
    """Record what becomes of servers, and feed the audit log to those who subscribed."""
    servers.watch(partial(servers.record_transition, audit_log))
    notices = AuditFeed(grants, is_counted)
    told = AuditServerFeed(servers, lambda name: server_policies.policy_of(name).audit)
    audit_log.listeners.extend((notices.on_event, told.on_event))
    return AuditComponents(notices, told, ServerAuditReports(audit_log, servers))


def _known(tools: ToolReviewService, server: str, tool: str) -> tuple[Risk, Sequence[str]] | None:
    offer = tools.find_entry(server, tool)
    if offer is None:
        return None
    standing = tools.review_of(offer)
    return standing.risk, standing.validators
