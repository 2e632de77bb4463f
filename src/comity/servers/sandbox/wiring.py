"""Wiring of the sandbox: each server is confined to the permissions that it has."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from comity.app.records import GatewaySnapshot
from comity.app.settings import ServerSettings, Settings
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.config.files import state_folder
from comity.errors import Misconfigured, Unavailable
from comity.http.client.dial import Resolver, proxy_chooser
from comity.mcp.actors import GATEWAY
from comity.policy.risk import SERVER_SUBJECT_PREFIX, ServerPolicy, TrustLevel
from comity.policy.wiring import ServerPolicyService
from comity.servers.process.process import ServerCommand
from comity.servers.sandbox.egress import EgressEvent, EgressProxy, open_stream
from comity.servers.sandbox.egress_rules import ANY_HOST, EgressRules
from comity.servers.sandbox.model import MEGABYTE, SandboxAccess, SandboxLevel, SandboxLimits
from comity.servers.sandbox.refusals import READ_FILES, WRITE_FILES
from comity.servers.sandbox.service import SandboxRequest, SandboxRun, SandboxService
from comity.servers.service import ServerService
from comity.servers.transports.stdio import Confine
from comity.servers.wiring import proxies_of, sandbox_of
from comity.storage.changes import RecordKind
from comity.toolkit.background import BackgroundTasks

REACH_NETWORK: Final = "network.outbound"
EXECUTE: Final = "shell.execute"

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
    """The sandboxes of one gateway. A change of permissions restarts the servers it concerns."""

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
        self._resolver = resolver
        self._audit_log = audit_log
        self.service = SandboxService(self._make_proxy, settings.container_engine)
        self._server_policies = server_policies
        self._servers = servers
        self._descriptions = descriptions
        # What states the rights of each server, and the rights at its last start.
        self._request_by_server: dict[str, Callable[[], SandboxRequest]] = {}
        self._started_with: dict[str, SandboxRequest] = {}
        self._background_tasks = BackgroundTasks("the sandboxes")
        permissions = server_policies.tool_reviews.permission_service
        permissions.watch(lambda _: self._restart_changed())
        snapshot.watch(RecordKind.GRANTS, lambda _: self._restart_changed())

    def confine_configured(self, server: ServerSettings) -> Confine:
        """Return the function that confines a server of the file to its permissions."""
        return self.confine(server.id, lambda: self._configured_request(server))

    def confine(self, server: str, request: Callable[[], SandboxRequest]) -> Confine:
        """Return the function that prepares each start of a server. `request` states its rights."""
        self._request_by_server[server] = request

        async def enter(command: ServerCommand) -> SandboxRun:
            wanted = self._started_with[server] = request()
            _check_access(server, wanted.access)
            run = await self.service.enter(server, command, wanted)
            known = self._descriptions.get(server, {})
            self._descriptions[server] = {**known, "sandbox": run.policy.level.label}
            return run

        return enter

    def is_approved(self, server: str, permission: str) -> bool:
        """Whether a grant or the file gives a server this permission. A claim alone does not."""
        permissions = self._server_policies.tool_reviews.permission_service
        return permissions.is_approved(server, permission)

    def forget(self, server: str) -> None:
        self._request_by_server.pop(server, None)
        self._started_with.pop(server, None)

    async def close(self) -> None:
        self._background_tasks.cancel()
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
        def reach(permission: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
            if not self.is_approved(server, permission):
                return ()
            return policy.reach.get(permission) or default

        return SandboxAccess(
            readable=expand_folders(reach(READ_FILES)),
            writable=expand_folders(reach(WRITE_FILES)),
            hosts=reach(REACH_NETWORK, (ANY_HOST,)),
            may_execute=self.is_approved(server, EXECUTE),
        )

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

    def _restart_changed(self) -> None:
        """Restart the servers whose rights changed, because a sandbox is fixed at its start."""
        for server, before in list(self._started_with.items()):
            request = self._request_by_server.get(server)
            if request is None or self._servers.get(server) is None or request() == before:
                continue
            self._started_with.pop(server)
            self._background_tasks.start(self._servers.restart(server, GATEWAY))


def _check_access(server: str, access: SandboxAccess) -> None:
    """Raise Unavailable for an unreadable host, or for a folder with the tokens of Comity."""
    try:
        EgressRules(access.hosts)
    except Misconfigured as mistake:
        raise Unavailable(f"server {server!r} is not started: {mistake}") from None
    own = state_folder().resolve()
    for place in (*access.readable, *access.writable):
        if own.is_relative_to(Path(place).resolve()):
            raise Unavailable(
                f"server {server!r} is not started: {place} holds files of Comity itself; name a "
                "folder inside of it"
            )


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


def expand_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return full paths: `~` is the home directory, and the rest is in the current folder."""
    return tuple(str(Path(each).expanduser().absolute()) for each in folders)
