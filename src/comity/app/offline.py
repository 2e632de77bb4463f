"""The operator API over the store alone, for commands without a running gateway."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from comity.app.records import RecordStores, open_store
from comity.app.settings import Settings
from comity.approvals.service import find_by_id_or_prefix
from comity.approvals.wiring import stored_approval_routes
from comity.audit.api import JournalApi
from comity.audit.export import AuditReader, Settle
from comity.audit.wiring import AuditLogComponents, make_signer, node_of, signing_key_file
from comity.cli.api_client import Answer
from comity.errors import MalformedMessage, Misconfigured
from comity.http.api import ApiRouter, ApiRoutes
from comity.http.asgi import OPERATORS
from comity.identity.api import RecordsApi
from comity.identity.keys import KeyAdmin
from comity.identity.wiring import pepper_for
from comity.mcp import jsonrpc
from comity.mcp.actors import LOCAL_OPERATOR, Actor
from comity.policy.wiring import stored_grant_routes


def audit_routes(records: RecordStores, audit_log_components: AuditLogComponents) -> ApiRoutes:
    """Return the routes for the audit log of a running gateway."""
    checkpoints, audit_log = audit_log_components.checkpoints, audit_log_components.audit_log

    def about() -> Mapping[str, object]:
        signed = None if checkpoints is None else checkpoints.last_checkpoint
        return {
            "node": audit_log.node if audit_log.head is None else audit_log.head.node,
            "key": None if checkpoints is None else checkpoints.key,
            "signed_to": None if signed is None else signed.seq,
            "waiting": audit_log.uncommitted_count,
        }

    settle = None if audit_log.is_durable else audit_log.flush
    return JournalApi(_audit_reader(records, settle), about).routes


def stored_audit_routes(records: RecordStores, settings: Settings) -> ApiRoutes:
    """Return the routes for the audit log that read the store without a gateway."""

    def about() -> Mapping[str, object]:
        signer = make_signer(settings) if _has_signing_key(settings) else None
        key = None if signer is None else signer.key
        return {"node": node_of(settings, signer), "key": key, "signed_to": None, "waiting": 0}

    return JournalApi(_audit_reader(records), about).routes


@asynccontextmanager
async def open_audit_reader(settings: Settings) -> AsyncGenerator[AuditReader]:
    """Yield a reader of the audit log in the store. Raises Misconfigured."""
    if not settings.store.url:
        raise Misconfigured(
            'no journal is kept without a store: write url = "sqlite:///comity.db" in [store]'
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
            'nothing is kept without a store: write url = "sqlite:///comity.db" in [store], or '
            "start the gateway first"
        )
    records = open_store(settings.store.url)
    try:
        await records.open()
        pepper = pepper_for(settings)
        api = ApiRouter(_allow_operator, RecordsApi(KeyAdmin(records, pepper)).routes)
        api.add(stored_approval_routes(records, settings, pepper))
        api.add(stored_audit_routes(records, settings))
        api.add(await stored_grant_routes(records, settings))
        yield api
    finally:
        await records.close()


def _allow_operator(actor: Actor, verb: str, target: str) -> None:
    """Allow everything. A user who can open the store is its operator and needs no grant."""
    del actor, verb, target


def request_offline(
    settings: Settings,
    method: str,
    path_parts: tuple[str, ...],
    query: Mapping[str, str],
    body: Mapping[str, object],
) -> Answer:
    """Answer like a running gateway, from the store. Raises Misconfigured, Unavailable."""
    # Encoded and decoded as over HTTP, so that both ways accept and return the same values.
    given = query if method == "GET" else json.loads(json.dumps(body))
    path = "/".join((OPERATORS.rstrip("/"), *path_parts))

    async def answered() -> bytes:
        async with open_offline_api(settings) as api:
            return bytes(jsonrpc.to_raw(await api.answer(method, path, given, LOCAL_OPERATOR)))

    try:
        return json.loads(asyncio.run(answered()))
    except MalformedMessage as refused:
        raise Misconfigured(str(refused)) from None


def export_audit_lines(settings: Settings) -> Iterator[bytes]:
    """Yield the lines of the exported audit log of a store. Raises Misconfigured, Unavailable."""
    with asyncio.Runner() as runner:
        opened = open_audit_reader(settings)
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
