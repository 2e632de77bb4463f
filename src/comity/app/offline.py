"""The operator API over the store alone, for commands without a running gateway."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from comity.app.records import RecordStores, open_store
from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource
from comity.approvals.service import find_by_id_or_prefix
from comity.approvals.wiring import stored_approval_routes
from comity.audit.api import AuditApi, AuditKeyView
from comity.audit.export import AuditReader, Settle
from comity.audit.log import AuditLog
from comity.audit.verification import AuditVerification
from comity.audit.verify import CheckpointInterval
from comity.audit.wiring import (
    AuditLogComponents,
    make_signer,
    node_of,
    recorded_routes,
    signing_key_file,
)
from comity.cli.api_client import Answer, ApiClient, exit_status_of, find_gateway_by_url, url_of
from comity.cli.target import running_gateway
from comity.errors import MalformedMessage, Misconfigured, Unavailable
from comity.http.api import ApiRouter, ApiRoutes
from comity.http.asgi import OPERATORS
from comity.identity.wiring import identity_routes, pepper_for
from comity.mcp import jsonrpc
from comity.mcp.actors import LOCAL_OPERATOR, Actor
from comity.policy.wiring import stored_grant_routes, stored_snapshot

PROBE_TIMEOUT: Final = timedelta(seconds=2)


def audit_routes(
    records: RecordStores, audit_log_components: AuditLogComponents, settings: Settings
) -> ApiRoutes:
    """Return the routes for the audit log of a running gateway."""
    checkpoints, audit_log = audit_log_components.checkpoints, audit_log_components.audit_log

    def about() -> AuditKeyView:
        signed = None if checkpoints is None else checkpoints.last_checkpoint
        return {
            "node": audit_log.node if audit_log.head is None else audit_log.head.node,
            "key": None if checkpoints is None else checkpoints.key,
            "signed_to": None if signed is None else signed.seq,
            "waiting": audit_log.uncommitted_count,
        }

    settle = None if audit_log.is_durable else audit_log.flush
    reader = _audit_reader(records, settle)
    interval = CheckpointInterval(
        settings.audit.checkpoint_entries, settings.audit.checkpoint_interval
    )
    return (*AuditApi(reader, about).routes, *AuditVerification(reader, interval).routes)


def stored_audit_routes(records: RecordStores, settings: Settings) -> ApiRoutes:
    """Return the routes for the audit log that read the store without a gateway."""

    def about() -> AuditKeyView:
        signer = make_signer(settings) if _has_signing_key(settings) else None
        key = None if signer is None else signer.key
        return {"node": node_of(settings, signer), "key": key, "signed_to": None, "waiting": 0}

    return AuditApi(_audit_reader(records), about).routes


@asynccontextmanager
async def open_audit_reader(settings: Settings) -> AsyncGenerator[AuditReader]:
    """Yield a reader of the audit log in the store. Raises Misconfigured."""
    if not settings.store.url:
        raise Misconfigured(
            'there is no audit log without a store: write url = "sqlite:///comity.db" in [store]'
        )
    records = open_store(settings.store.url)
    try:
        await records.open()
        yield _audit_reader(records)
    finally:
        await records.close()


def _audit_reader(records: RecordStores, settle: Settle | None = None) -> AuditReader:
    find_request = partial(find_by_id_or_prefix, records.approval_requests)
    return AuditReader(records.audit_log, records.approval_requests, find_request, settle=settle)


def _has_signing_key(settings: Settings) -> bool:
    """Return whether a signing key exists. Reading must not create one."""
    file = signing_key_file(settings)
    return file is not None and file.exists()


@asynccontextmanager
async def open_offline_api(settings: Settings) -> AsyncGenerator[ApiRouter]:
    """Yield the API routes that work on the store while no gateway runs."""
    if not settings.store.url:
        raise Misconfigured(
            'no store is configured: write url = "sqlite:///comity.db" in [store], or '
            "start the gateway first"
        )
    records = open_store(settings.store.url)
    try:
        await records.open()
        pepper = pepper_for(settings)
        snapshot = stored_snapshot(records, settings)

        def make_routes(audit_log: AuditLog | None) -> ApiRoutes:
            return (
                *identity_routes(snapshot, pepper, audit_log),
                *stored_approval_routes(settings, snapshot, pepper, audit_log),
                *stored_grant_routes(snapshot, audit_log),
            )

        api = ApiRouter(_allow_operator, recorded_routes(settings, snapshot, pepper, make_routes))
        api.add(stored_audit_routes(records, settings))
        yield api
    finally:
        await records.close()


def _allow_operator(actor: Actor, verb: str, target: str) -> None:
    """Allow everything. A user who can open the store is its operator and needs no grant."""
    del actor, verb, target


def settings_of(config: Path | None) -> Settings:
    """Return the settings of a configuration. Raises Misconfigured."""
    return (
        ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True).load().settings
    )


def refuse_if_gateway_runs(config: Path | None) -> None:
    """Raise Misconfigured if a gateway with this configuration runs.

    A running gateway caches the records of its store and signs what it writes there. A second
    writer would make the cache stale.
    """
    running = running_gateway(config)
    settings = settings_of(config)
    url = url_of(settings.host, settings.port) if running is None else running.url
    # A gateway that left a record for this URL serves another configuration.
    may_be_ours = settings.port and find_gateway_by_url(url) is None
    if running is not None or (may_be_ours and _is_gateway_running(url)):
        raise Misconfigured(
            f"a gateway with this configuration runs at {url}; remove --offline, or stop it"
        )


def _is_gateway_running(url: str) -> bool:
    try:
        ApiClient(url, PROBE_TIMEOUT).status()
    except Misconfigured:
        # A gateway runs there and refuses these credentials.
        return True
    except Unavailable:
        return False
    return True


def request_offline(
    config: Path | None,
    method: str,
    path_parts: tuple[str, ...],
    query: Mapping[str, str],
    body: Mapping[str, object],
) -> Answer:
    """Answer like a running gateway, from the store. Raises Misconfigured, Unavailable."""
    settings = settings_of(config)
    # Encoded and decoded as over HTTP, so that both ways accept and return the same values.
    given = query if method == "GET" else json.loads(json.dumps(body))
    path = "/".join((OPERATORS.rstrip("/"), *path_parts))

    async def answered() -> bytes:
        async with open_offline_api(settings) as api:
            return bytes(jsonrpc.to_raw(await api.answer(method, path, given, LOCAL_OPERATOR)))

    try:
        return json.loads(asyncio.run(answered()))
    except MalformedMessage as refused:
        raise Misconfigured(str(refused), exit_status_of(refused.fault.http_status)) from None


def export_audit_lines(config: Path | None) -> Iterator[bytes]:
    """Yield the lines of the exported audit log of a store. Raises Misconfigured, Unavailable."""
    with asyncio.Runner() as runner:
        opened = open_audit_reader(settings_of(config))
        history = runner.run(opened.__aenter__())
        try:
            place = None
            while True:
                part = runner.run(history.part(place))
                yield from part.lines
                if part.next is None:
                    return
                place = part.next
        finally:
            runner.run(opened.__aexit__(None, None, None))
