"""Wiring of the sandbox: each server is confined to the permissions that it has."""

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from comity.app.records import GatewaySnapshot
from comity.app.settings import ServerSettings, Settings
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import Misconfigured, Unavailable
from comity.http.client.dial import Resolver, proxy_chooser
from comity.mcp.actors import GATEWAY
from comity.policy.risk import SERVER_SUBJECT_PREFIX, ServerPolicy, TrustLevel
from comity.policy.wiring import ServerPolicyService
from comity.servers.process.process import ServerCommand
from comity.servers.sandbox.egress import EgressEvent, EgressProxy, open_stream
from comity.servers.sandbox.egress_rules import EgressRules
from comity.servers.sandbox.model import (
    EXECUTE,
    MEGABYTE,
    REACH_NETWORK,
    READ_FILES,
    WRITE_FILES,
    SandboxAccess,
    SandboxLevel,
    SandboxLimits,
)
from comity.servers.sandbox.reach import (
    ANY_PROGRAM,
    FolderHandles,
    exchange_problem,
    expand_folders,
    is_below,
    lost_permissions,
    open_folders,
    own_files_problem,
    without_nested,
    write_problem,
)
from comity.servers.sandbox.service import SandboxRequest, SandboxRun, SandboxService
from comity.servers.service import ServerService
from comity.servers.transports.stdio import Confine
from comity.servers.wiring import proxies_of, sandbox_of
from comity.storage.changes import RecordKind
from comity.storage.stores import file_of
from comity.toolkit.background import BackgroundTasks

_SCRATCH_SECONDS: Final = 5.0
_REVOKED: Final = "a permission of it was revoked"
_RESULT_BY_OUTCOME: Final = {
    "allowed": AuditResult.SUCCESS,
    "refused": AuditResult.BLOCKED,
    "failed": AuditResult.FAILURE,
}

_LIMITS_BY_TRUST: Final[Mapping[TrustLevel, SandboxLimits]] = {
    TrustLevel.SANDBOXED: SandboxLimits(memory=1024 * MEGABYTE, processes=64),
    TrustLevel.STANDARD: SandboxLimits(memory=2048 * MEGABYTE, processes=256, open_files=4096),
    TrustLevel.TRUSTED: SandboxLimits(memory=4096 * MEGABYTE, processes=512, open_files=8192),
}


class SandboxComponents:
    """The sandboxes of one gateway. A change of permissions restarts the servers it concerns.

    A sandbox is fixed at its start. A server that gains rights restarts after its calls. A server
    that loses rights ends at once.
    """

    def __init__(
        self,
        settings: Settings,
        server_policies: ServerPolicyService,
        servers: ServerService,
        descriptions: dict[str, Mapping[str, str]],
        *,
        snapshot: GatewaySnapshot,
        resolver: Resolver,
        audit_log: AuditLog,
    ) -> None:
        self._settings = settings
        self._own_addresses = {(settings.host, settings.port)}
        store = file_of(settings.store.url)
        self._own_files = (*settings.config_files, *(() if store is None else (store,)))
        self._resolver = resolver
        self._audit_log = audit_log
        self.service = SandboxService(self._make_proxy, settings.container_engine)
        self._server_policies = server_policies
        self._servers = servers
        self._descriptions = descriptions
        self._snapshot = snapshot
        # What states the rights of each server, and the rights at its last start.
        self._request_by_server: dict[str, Callable[[], SandboxRequest]] = {}
        self._started_with: dict[str, SandboxRequest] = {}
        # The servers whose restart has begun.
        self._restarting: set[str] = set()
        self._background_tasks = BackgroundTasks("the sandboxes")
        self._scratch_tasks = BackgroundTasks("the scratch folders")
        permissions = server_policies.tool_reviews.permission_service
        permissions.watch(lambda _: self._apply_changes())
        snapshot.watch(RecordKind.GRANTS, lambda _: self._apply_changes())

    def confine_configured(self, server: ServerSettings) -> Confine:
        """Return the function that confines a server of the file to its permissions."""
        return self.confine(server.id, lambda: self._configured_request(server))

    def confine(self, server: str, request: Callable[[], SandboxRequest]) -> Confine:
        """Return the function that prepares each start of a server. `request` states its rights."""
        self._request_by_server[server] = request

        async def enter(command: ServerCommand) -> SandboxRun:
            wanted = self._started_with[server] = request()
            self._restarting.discard(server)
            folders = open_checked(server, wanted, self._writable_places(), self._own_files)
            run = await self.service.enter(server, command, wanted, folders)
            if _lost_rights(wanted, request()):
                await run.close()
                raise Unavailable(f"server {server!r} is not started: {_REVOKED}")
            known = self._descriptions.get(server, {})
            self._descriptions[server] = {**known, "sandbox": run.policy.level.label}
            return run

        return enter

    def granted_access(self, server: str) -> SandboxAccess:
        """Return what grants and the file give a server. A claim of its own gives nothing."""
        return self._access_of(server, self._server_policies.policy_of(server))

    def check(self, keep_alive_seconds: float) -> None:
        """Apply changes that no event reports, and end servers that filled their scratch folder.

        Such a change is the end of an approval.
        """
        self._apply_changes()
        if not self._scratch_tasks:
            self._scratch_tasks.start(self._bound_scratch_folders())

    async def _bound_scratch_folders(self) -> None:
        await self.service.end_filled_runs()
        await asyncio.sleep(_SCRATCH_SECONDS)

    def forget(self, server: str) -> None:
        self._request_by_server.pop(server, None)
        self._started_with.pop(server, None)
        self._restarting.discard(server)

    async def close(self) -> None:
        self._background_tasks.cancel()
        self._scratch_tasks.cancel()
        await self.service.close()

    def _configured_request(self, server: ServerSettings) -> SandboxRequest:
        policy = self._server_policies.policy_of(server.id)
        wanted = sandbox_of(server, self._settings)
        is_sandboxed = policy.trust is TrustLevel.SANDBOXED
        # A server that is not confined needs no restart when its permissions change.
        is_confined = is_sandboxed or wanted != SandboxLevel.NONE.label
        access = self._access_of(server.id, policy) if is_confined else SandboxAccess()
        return SandboxRequest(wanted, is_sandboxed, access, _limits_of(server, policy))

    def _access_of(self, server: str, policy: ServerPolicy) -> SandboxAccess:
        permissions = self._server_policies.tool_reviews.permission_service

        def reach(permission: str) -> tuple[str, ...]:
            approval = permissions.find_approval(server, permission)
            return () if approval is None else policy.reach_of(permission, approval.reach)

        programs = reach(EXECUTE)
        writable = without_nested(expand_folders(reach(WRITE_FILES)), ())
        return SandboxAccess(
            readable=without_nested(expand_folders(reach(READ_FILES)), writable),
            writable=writable,
            hosts=reach(REACH_NETWORK),
            may_execute=ANY_PROGRAM in programs,
            programs=tuple(each for each in programs if each != ANY_PROGRAM),
        )

    def _writable_places(self) -> set[str]:
        """Return the folders that servers may write to, where any of them may have made a link.

        A server that has not started yet may have made one in an earlier run of the gateway.
        """
        requests = [request() for request in self._request_by_server.values()]
        requests += self._started_with.values()
        return {each for request in requests for each in request.access.writable}

    def _make_proxy(
        self, server: str, hosts: tuple[str, ...], listener: socket.socket
    ) -> EgressProxy:
        return EgressProxy(
            server,
            listener,
            EgressRules(hosts, lambda: self._own_addresses),
            resolve=self._resolver.resolve,
            connect=open_stream(proxy_chooser(proxies_of(self._settings))),
            on_event=self._record_connection,
        )

    def add_own_address(self, url: str) -> None:
        """Add a URL of the gateway, which no server may reach."""
        parts = urlsplit(url)
        self._own_addresses.add((parts.hostname or "", parts.port or 0))

    def _record_connection(self, event: EgressEvent) -> None:
        """Record a connection to the network, or why there is none."""
        if event.outcome == "refused":
            self.service.note_connection_refusal(event.server, event.reason)
        self._audit_log.record(
            AuditType.SERVER_NETWORK,
            f"{SERVER_SUBJECT_PREFIX}{event.server}",
            server=event.server,
            result=_RESULT_BY_OUTCOME[event.outcome],
            rate_key=event.server,
            details={"bytes_sent": event.bytes_sent, "bytes_received": event.bytes_received},
            untrusted={"host": event.host, "port": event.port, "reason": event.reason},
        )

    def _apply_changes(self) -> None:
        """Restart the servers whose rights changed, and end those first that lost some."""
        if not self._snapshot.is_fresh:
            # The store does not answer. That takes no right from a server that runs.
            return
        for name, before in list(self._started_with.items()):
            request, server = self._request_by_server.get(name), self._servers.get(name)
            after = before if request is None else request()
            if server is None or after == before:
                continue
            lost = _lost_rights(before, after)
            if lost:
                self._started_with.pop(name)
                server.fail_calls(f"{_REVOKED}: {', '.join(lost)}")
                self.service.end_runs(name)
            if name not in self._restarting:
                self._restarting.add(name)
                self._background_tasks.start(self._servers.restart(name, GATEWAY))


def _lost_rights(before: SandboxRequest, after: SandboxRequest) -> list[str]:
    """Return the permissions that a server lost, or all of them if it was not confined before."""
    if after.is_confined and not before.is_confined:
        return [READ_FILES, WRITE_FILES, REACH_NETWORK, EXECUTE]
    return lost_permissions(before.access, after.access)


def open_checked(
    server: str, request: SandboxRequest, writable: Collection[str], own_files: Sequence[Path]
) -> FolderHandles:
    """Open the folders of a server.

    Raises Unavailable for an unreadable host, or for a folder that no server may get. That is one
    with files of Comity, or one behind a link that a server could have made.
    """
    access = request.access
    try:
        EgressRules(access.hosts)
        folders = open_folders(access, writable)
    except (Misconfigured, Unavailable) as mistake:
        raise Unavailable(f"server {server!r} is not started: {mistake}") from None
    # A place that does not exist is checked by its name, because it never comes into being.
    real = {place: folder.path for place, folder in folders.by_place.items()}
    places = (*access.readable, *access.writable)
    problems = [own_files_problem(real.get(place, place)) for place in places]
    problems += [exchange_problem(program, writable) for program in access.programs]
    problems += [write_problem(real.get(place, place), own_files) for place in access.writable]
    if request.wanted == SandboxLevel.OCI.label:
        problems += [_exchange_problem(place, real.get(place, place), writable) for place in places]
    for problem in filter(None, problems):
        folders.close()
        raise Unavailable(f"server {server!r} is not started: {problem}")
    return folders


def _exchange_problem(place: str, real: str, writable: Collection[str]) -> str | None:
    """Return why an image cannot get a folder, or None: only its engine sees what it opens."""
    around = {str(Path(each).resolve()) for each in writable} - {real}
    if is_below(real, around):
        return (
            f"{place} is in a folder that a server may write to, and could be exchanged at the "
            "start of an image; grant the outer folder"
        )
    return None


def _limits_of(server: ServerSettings, policy: ServerPolicy) -> SandboxLimits:
    """Return the limits of a server: its own settings, or those of its trust level."""
    own, limits = server.supervision, _LIMITS_BY_TRUST[policy.trust]
    return replace(
        limits,
        memory=own.max_memory_mb * MEGABYTE or limits.memory,
        processes=own.max_processes or limits.processes,
        open_files=own.max_open_files or limits.open_files,
        file_bytes=own.max_file_mb * MEGABYTE or limits.file_bytes,
        cpu_percent=own.max_cpu_percent,
    )
