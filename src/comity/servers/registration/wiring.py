"""Builds the registration of servers at run time, and starts registered servers."""

import logging
import os
import stat
import sys
import tempfile
from asyncio import to_thread
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import comity
from comity.app.records import GatewaySnapshot
from comity.app.settings import ServerSettings, Settings
from comity.app.upstreams import UpstreamRegistry
from comity.approvals.wiring import ApprovalComponents
from comity.errors import ACCESS_DENIED, Misconfigured
from comity.gateway.all_servers import GatewayInfo
from comity.gateway.pipeline import CallGate
from comity.http.client.dial import Resolver
from comity.mcp.actors import CALL, GATEWAY
from comity.mcp.entries import EntryKind
from comity.mcp.jsonrpc import FrameLimits
from comity.mcp.mgp import ShutdownReason
from comity.mcp.refusals import Refusal
from comity.policy.grants import Effect, Grant
from comity.policy.risk import ApprovalPolicy, TrustLevel
from comity.policy.wiring import ServerPolicyService
from comity.servers.process.process import ServerCommand
from comity.servers.registration.rules import (
    MAX_CODE_BYTES,
    RegistrationRequest,
    url_problem,
)
from comity.servers.registration.service import (
    GeneratedTools,
    RegistrationPolicy,
    RegistrationService,
    ServerNameRegistry,
)
from comity.servers.sandbox.levels import AUTO
from comity.servers.sandbox.model import SandboxAccess, SandboxLevel, SandboxLimits
from comity.servers.sandbox.reach import expand_folders
from comity.servers.sandbox.service import SandboxRequest, SandboxRun
from comity.servers.sandbox.wiring import SandboxComponents
from comity.servers.settings import SupervisionSettings
from comity.servers.supervisor import UpstreamServer
from comity.servers.transports.http import HttpTransportFactory
from comity.servers.transports.stdio import Confine, StdioTransportFactory
from comity.servers.wiring import UpstreamPools, find_public_addresses, server_limits_of
from comity.sessions.upstream import TransportFactory
from comity.storage.changes import RecordKind
from comity.toolkit.background import BackgroundTasks
from comity.toolkit.folders import remove_folder
from comity.validation.network import answers_problem
from comity.validation.python_code import (
    CodePolicy,
    CodeSafetyLevel,
    combine_policies,
    policy_hints,
)
from comity.validation.rules import unsafe_code_refusal
from comity.validation.wiring import ValidationComponents

MAX_MEMORY_BYTES: Final = 1024 * 1024 * 1024
TOOL_FILE: Final = "tool.py"

_UNCONFINED: Final = SandboxRequest(
    SandboxLevel.NONE.label, must_confine=False, access=SandboxAccess(), limits=SandboxLimits()
)

log = logging.getLogger(__name__)


def guarded_pools(pools: UpstreamPools, resolver: Resolver, hosts: frozenset[str]) -> UpstreamPools:
    """Return separate pools for registered URLs, which check the address of each connection."""
    find = find_public_addresses(resolver, hosts)
    calls = pools.calls.like(find)
    return UpstreamPools(calls, pools.streams.like(find), calls)


def url_transport_factory(
    registration: RegistrationRequest, pools: UpstreamPools, limits: FrameLimits
) -> HttpTransportFactory:
    return HttpTransportFactory(pools.calls, registration.url, {}, limits, pools.streams)


def folders_of(settings: Settings) -> tuple[Path, ...]:
    """Return the folders of registered scripts. Raise Misconfigured if one is invalid."""
    found = tuple(Path(each) for each in expand_folders(settings.registration.folders))
    for folder in found:
        if not folder.is_dir():
            raise Misconfigured(f"folders in [registration]: there is no folder {folder}")
    return found


NETWORK_PERMISSION: Final = "network.outbound"
STRICT_CODE_POLICY: Final = combine_policies(CodePolicy(CodeSafetyLevel.STRICT, "python"), {})
_STRICTER_POLICIES: Final = (ApprovalPolicy.DENY_ALL, ApprovalPolicy.CONFIG_ONLY)


@dataclass(slots=True)
class RegisteredServerInstaller:
    """Checks registered servers, and installs each one in a folder of its own."""

    settings: Settings
    upstream_registry: UpstreamRegistry
    server_policies: ServerPolicyService
    validation_components: ValidationComponents
    snapshot: GatewaySnapshot
    pools: UpstreamPools
    folders: tuple[Path, ...]
    _folder_by_server: dict[str, Path] = field(default_factory=dict[str, Path])
    _targets_by_server: dict[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )

    def names(self) -> Collection[str]:
        return {server.id for server in self.upstream_registry.settings.servers}

    async def prepare(
        self, registration_request: RegistrationRequest
    ) -> RegistrationRequest | Refusal:
        if registration_request.url:
            _, name = url_problem(
                registration_request.url, frozenset(self.settings.registration.hosts)
            )
            resolve = self.validation_components.resolver.resolve
            problem = answers_problem(await resolve(name)) if name else None
            return (
                registration_request
                if problem is None
                else Refusal(ACCESS_DENIED, f"its url: {problem}")
            )
        if (
            registration_request.command
            and not registration_request.code
            and self._is_script(registration_request)
        ):
            code = await to_thread(read_script, registration_request.args[0], self.folders)
            if code is None:
                reason = "there is no such script in a folder that the operator named"
                return Refusal(ACCESS_DENIED, reason)
            registration_request = replace(registration_request, code=code)
        if not registration_request.code:
            return registration_request
        violations = await self.validation_components.examiner.violations(
            registration_request.code, STRICT_CODE_POLICY
        )
        return (
            unsafe_code_refusal("code", violations, policy_hints(STRICT_CODE_POLICY))
            if violations
            else registration_request
        )

    def _is_script(self, registration: RegistrationRequest) -> bool:
        return (
            registration.command in self.settings.registration.commands
            and len(registration.args) == 1
        )

    async def install(
        self,
        registration_request: RegistrationRequest,
        owner: str,
        require_allowed: Callable[[], None],
    ) -> UpstreamServer:
        reach = (
            self._transport_factory(registration_request)
            if registration_request.url
            else await self._install_in_folder(registration_request)
        )
        try:
            if self._may_creator_call(registration_request):
                await self._grant(registration_request.id, owner)
            self.server_policies.tool_reviews.permission_service.claimed_permissions[
                registration_request.id
            ] = registration_request.permissions
            require_allowed()
            self.upstream_registry.add(_settings_of(registration_request, self.settings), reach)
        except BaseException:
            await self._remove_folder(registration_request.id, owner)
            raise
        told = {
            **self.upstream_registry.descriptions[registration_request.id],
            "registered_by": owner,
        }
        self.upstream_registry.descriptions[registration_request.id] = told
        return self.upstream_registry.servers.require(registration_request.id)

    async def grant_tools(self, server: str, owner: str, expires_at: datetime) -> None:
        tools = self.server_policies.tool_reviews.entries_of(server)
        grants = [
            Grant(
                subject=owner,
                verb=CALL,
                target=f"{server}/{each.name}",
                effect=Effect.ALLOW,
                granted_by=GATEWAY,
                justification="it wrote this tool, and the policy approves that",
                # A node that fails leaves the grant behind.
                expires_at=expires_at,
            )
            for each in tools
        ]
        self._targets_by_server[server] = tuple(grant.target for grant in grants)
        await self.snapshot.records.grants.put(*grants)
        await self.snapshot.refresh()

    async def uninstall(self, server: str, owner: str, reason: ShutdownReason) -> None:
        if self.upstream_registry.servers.get(server) is not None:
            await self.upstream_registry.remove(server, reason)
        await self._remove_folder(server, owner)

    def _transport_factory(self, registration: RegistrationRequest) -> TransportFactory:
        return url_transport_factory(registration, self.pools, server_limits_of(self.settings))

    async def _install_in_folder(self, registration: RegistrationRequest) -> TransportFactory:
        """Create a folder for the server, write its code there and return a transport factory."""
        folder = Path(await to_thread(tempfile.mkdtemp, prefix="comity-registered-"))
        self._folder_by_server[registration.id] = folder
        if registration.code:
            await to_thread((folder / TOOL_FILE).write_text, registration.code, "utf-8")
        home, argv = str(folder), registration.command_line
        if registration.code:
            file = str(folder / TOOL_FILE)
            argv = (sys.executable, "-I", "-m", "comity.sdk.functions", file)
        # The server gets a home directory of its own, so that it cannot read the operator's.
        command = ServerCommand(argv, {"HOME": home, "TMPDIR": home}, home)
        sandboxes = self.upstream_registry.sandboxes

        def request() -> SandboxRequest:
            if not self.settings.registration.sandbox:
                return _UNCONFINED
            return self._sandbox_request(registration, folder, sandboxes)

        confine = sandboxes.confine(registration.id, request)
        if not self.settings.registration.sandbox:
            confine = _with_warning(registration.id, confine)
        return StdioTransportFactory(registration.id, command, confine)

    def _sandbox_request(
        self, registration: RegistrationRequest, folder: Path, sandboxes: SandboxComponents
    ) -> SandboxRequest:
        """Return the rights of a registered program: its folder, and what was granted to it."""
        own, package = self.settings.registration, Path(comity.__file__).parent
        granted = sandboxes.granted_access(registration.id)
        access = replace(
            granted,
            readable=(
                *granted.readable,
                *expand_folders(own.readable_folders),
                *([str(package)] if registration.code else ()),
            ),
            writable=(*granted.writable, str(folder), *expand_folders(own.writable_folders)),
            # An import lists the folder beside a package, which may also hold the gateway's store.
            listed=(str(package.parent),) if registration.code else (),
            # An agent wrote the command line.
            reads_script=False,
        )
        return SandboxRequest(AUTO, must_confine=True, access=access, limits=SandboxLimits())

    async def _remove_folder(self, server: str, owner: str) -> None:
        self.server_policies.tool_reviews.permission_service.claimed_permissions.pop(server, None)
        for target in (f"{server}/*", *self._targets_by_server.pop(server, ())):
            await self.snapshot.records.grants.revoke(owner, CALL, target)
        folder = self._folder_by_server.pop(server, None)
        if folder is not None:
            await to_thread(remove_folder, folder)

    def _may_creator_call(self, registration: RegistrationRequest) -> bool:
        """Whether the creator may call the server, as it always may if it is made from code."""
        return registration.has_code or self.settings.registration.creator_may_call

    async def _grant(self, server: str, owner: str) -> None:
        grant = Grant(owner, CALL, f"{server}/*", Effect.ALLOW, granted_by=GATEWAY)
        await self.snapshot.records.grants.put(
            replace(grant, justification="it registered this server")
        )
        await self.snapshot.refresh()

    async def close(self) -> None:
        """Close connections and delete the folders of registered servers."""
        await self.pools.close()
        for folder in self._folder_by_server.values():
            await to_thread(remove_folder, folder)


def _with_warning(server: str, enter: Confine) -> Confine:
    """Return a function that also logs each start of a server that nothing confines."""

    async def enter_with_warning(command: ServerCommand) -> SandboxRun:
        log.warning("Registered server %r runs unconfined: registration.sandbox is false", server)
        return await enter(command)

    return enter_with_warning


def read_script(name: str, folders: Collection[Path]) -> str | None:
    """Return the text of a script below one of the folders, or None if none can be run."""
    for folder in folders:
        root = folder.resolve()
        try:
            path = (root / name).resolve()
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, RuntimeError):
            # The file does not exist, or its symbolic links form a loop.
            continue
        try:
            # A folder on the path may have been replaced by a symbolic link after `resolve`.
            is_inside = path.is_relative_to(root) and _path_of_descriptor(
                opened, path
            ).is_relative_to(root)
            is_file = stat.S_ISREG(os.fstat(opened).st_mode)
            found = os.read(opened, MAX_CODE_BYTES + 1) if is_inside and is_file else None
        finally:
            os.close(opened)
        if found is not None:
            return _decode_text(found)
    return None


def _path_of_descriptor(opened: int, default: Path) -> Path:
    """Return the path of an open file as the kernel reports it, or `default` without /proc."""
    where = Path(f"/proc/self/fd/{opened}")
    return where.resolve() if where.exists() else default


def _decode_text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8") if len(content) <= MAX_CODE_BYTES else None
    except UnicodeDecodeError:
        return None


def _settings_of(registration: RegistrationRequest, settings: Settings) -> ServerSettings:
    """Return the settings of a registered server: untrusted, and with no permission approved."""
    approval = settings.policy.approval_policy
    policy: dict[str, Any] = {"trust": TrustLevel.SANDBOXED}
    policy["approval_policy"] = (
        approval if approval in _STRICTER_POLICIES else ApprovalPolicy.INTERACTIVE
    )
    return ServerSettings(
        registration.id,
        registration.id,
        registration.transport,
        # This text is for display only. The transport factory holds the sandboxed command line.
        command=registration.command or ("code" if registration.code else ""),
        url=registration.url,
        supervision=SupervisionSettings(restart_policy=registration.restart_policy),
        trust_level="sandboxed",
        mgp={"trust_level": "sandboxed"},
        extensions=registration.extensions,
        policy=policy,
    )


def code_goes_unasked(settings: Settings) -> bool:
    """Whether code needs no approval: `creating` is on, and the policy approves. (MGP §16.6)"""
    is_local, approval = settings.identity.mode == "local", settings.policy.approval_policy
    is_auto = approval == "auto_approve" or (approval == "auto" and is_local)
    return settings.registration.allow_code_tools and is_auto


@dataclass(frozen=True, slots=True)
class RegistrationComponents:
    """The registration of servers, and the servers that it started."""

    service: RegistrationService
    installer: RegisteredServerInstaller

    async def open(self) -> None:
        await self.service.open()

    def check(self, keep_alive_seconds: float) -> None:
        self.service.check(keep_alive_seconds)

    @property
    def generated_tools(self) -> GeneratedTools:
        """The component that lets agents create tools that no server has."""
        is_tool_listed = self.installer.settings.discovery.mode == "on"
        return GeneratedTools(self.service, STRICT_CODE_POLICY, is_tool_listed=is_tool_listed)

    def stop(self) -> None:
        self.service.stop()

    async def close(self) -> None:
        await self.installer.close()


def build_registration(
    upstream_registry: UpstreamRegistry,
    validation_components: ValidationComponents,
    approval_components: ApprovalComponents,
    call_gate: CallGate,
    info: GatewayInfo,
) -> RegistrationComponents:
    """Build the methods by which clients register and deregister servers. (MGP §15.4)"""
    settings, snapshot = upstream_registry.settings, approval_components.snapshot
    allowed = settings.registration
    pools = guarded_pools(
        upstream_registry.pools, validation_components.resolver, frozenset(allowed.hosts)
    )
    registration_components = RegisteredServerInstaller(
        settings,
        upstream_registry,
        upstream_registry.server_policies,
        validation_components,
        snapshot,
        pools,
        folders_of(settings),
    )
    names, background_tasks = (
        ServerNameRegistry(snapshot.records.registrations),
        BackgroundTasks("names of servers"),
    )
    snapshot.watch(RecordKind.REGISTRATIONS, lambda _: background_tasks.start(names.reload()))
    rights = RegistrationPolicy(
        allowed,
        snapshot.grants,
        upstream_registry.servers,
        names,
        registration_components.names,
        code_goes_unasked=code_goes_unasked(settings),
    )
    registrations = RegistrationService(
        registration_components,
        rights,
        approval_components.pending_calls,
        approval_components.audit_log,
        # The tools of a server that an actor may call, by that server's own names.
        tools_of=lambda actor, server: list(call_gate.usable_names(actor, EntryKind.TOOL, server)),
        stamp=info.add_modern_fields,
    )
    return RegistrationComponents(registrations, registration_components)
