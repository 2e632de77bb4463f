"""Registration of servers at run time: names, permissions, start and removal."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol, cast

from msgspec import Raw

from comity.approvals.model import ApprovalDraft, ApprovalKind, ApprovalRequest, call_digest
from comity.approvals.pending_calls import GoOn, PendingCall, PendingCalls
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditFacts, AuditLog
from comity.catalog.definitions import RegistrationRecord, RegistrationStore
from comity.catalog.discovery_messages import MetaTool, ToolRequestParams
from comity.errors import (
    ACCESS_DENIED,
    INVALID_PARAMS,
    QUOTA_EXCEEDED,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.mcp import jsonrpc
from comity.mcp.actors import ADMIN_WRITE, GATEWAY, Actor, PrincipalKind
from comity.mcp.mgp import MgpExtension, ServerLifecycleState, ShutdownReason
from comity.mcp.protocol import CALL_TOOL
from comity.mcp.refusals import Refusal
from comity.policy.grants import PERMISSION_VERB, Effect, GrantSource
from comity.policy.snapshot import PolicyEngine, WallClock
from comity.servers.registration import rules
from comity.servers.registration import rules as registration
from comity.servers.registration.rules import (
    MAX_CODE_BYTES,
    REGISTER_METHOD,
    RegistrationRequest,
    describe_request,
    summarize_request,
)
from comity.servers.registration.rules import RegistrationRequest as WantedServer
from comity.servers.registration.settings import RegistrationSettings
from comity.servers.service import ServerService
from comity.servers.supervisor import UpstreamServer
from comity.sessions.calls import Call
from comity.sessions.methods import MethodRequest, method
from comity.telemetry.logging import TroubleLog
from comity.toolkit.background import BackgroundTasks
from comity.validation.python_code import CodePolicy, policy_hints

MAX_NAMES_PER_PRINCIPAL: Final = 100
"""How many names a principal keeps. Beyond this limit, its oldest names become free again."""


class ServerNameRegistry:
    """Every registered server name and its owner, in memory and in the store."""

    def __init__(
        self, records: RegistrationStore, clock: WallClock = lambda: datetime.now(UTC)
    ) -> None:
        self._records = records
        self._clock = clock
        self.owners: dict[str, str] = {}
        self.is_loaded = False

    async def load(self) -> Sequence[RegistrationRecord]:
        """Load all registrations and return them, the oldest first. Raises Unavailable."""
        found = sorted(await self._records.all(), key=_age_key)
        self.owners = {each.server: each.created_by for each in found}
        self.is_loaded = True
        return found

    async def reload(self) -> None:
        """Load the names again after a write on this node or another one."""
        try:
            await self.load()
        except Unavailable:
            self.is_loaded = False

    async def reserve(
        self, registration_request: RegistrationRequest, owner: str, *, is_kept: bool
    ) -> None:
        entry = rules.to_entry(registration_request) if is_kept else {}
        await self._write(registration_request.id, owner, entry, registration_request.justification)
        own = [
            id
            for id, each in self.owners.items()
            if each == owner and id != registration_request.id
        ]
        for id in own[: max(0, len(own) + 1 - MAX_NAMES_PER_PRINCIPAL)]:
            await self.release(id)

    async def mark_ended(self, id: str, owner: str) -> None:
        """Record that the server has ended. Its name stays reserved for the owner."""
        await self._write(id, owner, {}, "")

    async def release(self, id: str) -> None:
        """Free the name for any principal, after an operator removed the server."""
        self.owners.pop(id, None)
        await self._records.remove(id)

    async def _write(self, id: str, owner: str, entry: dict[str, object], why: str) -> None:
        self.owners.pop(id, None)
        self.owners[id] = owner
        await self._records.put(RegistrationRecord(id, entry, owner, self._clock(), why))


def _age_key(found: RegistrationRecord) -> tuple[float, str]:
    return (0.0 if found.created_at is None else found.created_at.timestamp()), found.server


CODE_EXECUTION: Final = "code_execution"
_LOCAL_ONLY_REFUSAL: Final = Refusal(
    ACCESS_DENIED,
    "servers are registered from this machine alone; an operator may set from_network = true in "
    "[registration]",
)


@dataclass(frozen=True, slots=True)
class RegisteredServer:
    """A registered server, its owner and the time at which it expires."""

    registration: RegistrationRequest
    owner: str
    expires_at: datetime | None


@dataclass(slots=True)
class RegistrationPolicy:
    """Decides which registrations are possible, by settings, existing servers and grants."""

    settings: RegistrationSettings
    policy_engine: PolicyEngine
    servers: ServerService
    names: ServerNameRegistry
    # The names of all servers in the configuration file.
    configured_names: Callable[[], Collection[str]]
    # Whether code of an agent with that grant needs no approval. (D-31, MGP §16.6)
    code_goes_unasked: bool = False
    registered: dict[str, RegisteredServer] = field(default_factory=dict[str, RegisteredServer])

    def refusal_reason(self, registration_request: RegistrationRequest) -> str | None:
        """Return what the settings forbid for every actor in this registration, or None."""
        hosts = frozenset(self.settings.hosts)
        takes_code = self.settings.allow_code_tools
        return rules.refusal_reason(
            registration_request, self.settings.commands, hosts, takes_code=takes_code
        )

    def registration_refusal(
        self, actor: Actor, registration_request: RegistrationRequest
    ) -> Refusal | None:
        """Return why an actor cannot request this registration, or None if it can."""
        if not self.settings.from_network and not actor.is_local:
            return _LOCAL_ONLY_REFUSAL
        if self.effect(actor, registration_request) is Effect.DENY:
            reason = (
                f"{actor.party or 'an unauthenticated client'} may not register "
                f"{registration_request.id:.80}"
            )
            return Refusal(ACCESS_DENIED, reason)
        problem = self.refusal_reason(registration_request)
        if problem is not None:
            return Refusal(ACCESS_DENIED, problem)
        others = self._names_in_use(actor.party, registration_request.id)
        problem = rules.id_problem(registration_request.id, self.settings.namespace, others)
        if problem is not None:
            return Refusal(INVALID_PARAMS, problem)
        owners = [guest.owner for guest in self.registered.values()]
        problem = rules.limit_problem(
            actor.party, owners, self.settings.max_servers, self.settings.max_servers_per_principal
        )
        return None if problem is None else Refusal(QUOTA_EXCEEDED, problem)

    def require_startable(
        self,
        actor: Actor,
        registration_request: RegistrationRequest,
        own: RegisteredServer | None,
        *,
        is_approved: bool,
    ) -> None:
        """Raise MalformedMessage unless the server may start now, not counting its own place."""
        has_place = own is not None and self.registered.get(registration_request.id) is own
        if own is not None and has_place:
            del self.registered[registration_request.id]
        try:
            refusal = self.registration_refusal(actor, registration_request)
        finally:
            if own is not None and has_place:
                self.registered[registration_request.id] = own
        if own is not None and not has_place:
            refusal = Refusal(ACCESS_DENIED, "it was deregistered before it started")
        if (
            refusal is None
            and not is_approved
            and self.effect(actor, registration_request) is not Effect.ALLOW
        ):
            refusal = Refusal(ACCESS_DENIED, "a grant that this needs was removed")
        if refusal is not None:
            raise MalformedMessage(refusal.reason, refusal.fault)

    def effect(self, actor: Actor, registration_request: RegistrationRequest) -> Effect:
        """Return whether the actor may register this server, must request approval, or neither."""
        judged = self.policy_engine.authorize(actor, ADMIN_WRITE, registration_request.id, "")
        effect = rules.decide_entitlement(actor, judged)
        if effect is Effect.DENY or not registration_request.has_code:
            return effect
        if not self._may_create(actor):
            return Effect.DENY
        return Effect.ALLOW if self.code_goes_unasked else effect

    def is_called_unasked(self, registration_request: RegistrationRequest) -> bool:
        """Whether the creator calls the tools of this server without an approval. (MGP §16.6)"""
        return registration_request.has_code and self.code_goes_unasked

    def may_administer(self, actor: Actor, server: str) -> bool:
        judged = self.policy_engine.authorize(actor, ADMIN_WRITE, server, "")
        return judged.effect is Effect.ALLOW and actor.kind is not PrincipalKind.SERVER

    def _may_create(self, actor: Actor) -> bool:
        """Whether a grant, by name and not by pattern, lets the agent run its code. (D-31)"""
        judged = self.policy_engine.authorize(actor, PERMISSION_VERB, CODE_EXECUTION, "")
        grant = judged.grant
        if grant is None or judged.effect is not Effect.ALLOW:
            return False
        return grant.verb == PERMISSION_VERB or grant.source is GrantSource.BUILT_IN

    def _names_in_use(self, party: str, id: str) -> set[str]:
        """Return all names in use, except an unused `id` that this principal owns."""
        running, configured = {*self.servers.names(), *self.registered}, {*self.configured_names()}
        others = running | configured | self.names.owners.keys()
        was_own = self.names.owners.get(id) == party
        return others - {id} if was_own and id not in running | configured else others


@dataclass(frozen=True, slots=True)
class ApprovedRegistration:
    """A registration that starts its server once it is approved."""

    call: Call
    refusal_reason: Callable[[], Refusal | None]
    audit_id = ""

    async def record_intent(self, request: ApprovalRequest) -> Refusal | None:
        # `_start_server` records the start in the audit log, so this records nothing.
        self.call.permitted_by = request.id
        return None

    def record_not_run(self) -> None:
        self.call.permitted_by = ""

    async def run(self, request: ApprovalRequest, go_on: GoOn) -> None:
        # The approval stays consumed even if the start fails.
        try:
            await go_on()
        except (Unavailable, MalformedMessage) as error:
            self.call.fail(error)


def _describe_request(
    registration_request: RegistrationRequest, why: str = ""
) -> dict[str, object]:
    """Return a registration for the audit log. Of its code, only the length is logged."""
    said = {
        **rules.describe_request(registration_request),
        "claimed_by": registration_request.claimed_by,
    }
    code = said.pop("code", "")
    said |= {"code_characters": len(str(code))} if code else {}
    said |= {"reason": why[:1000]}
    return {name: value for name, value in said.items() if value}


log = logging.getLogger(__name__)

NOT_FOUND_TEXT: Final = "there is no server of this id that you registered"
_ANSWER_MARGIN: Final = timedelta(seconds=5)
"""How long a registration waits beyond the time limit of the start."""

type Answer = Mapping[str, object]


class ServerInstaller(Protocol):
    """Checks and installs registered servers."""

    async def prepare(
        self, registration_request: RegistrationRequest
    ) -> RegistrationRequest | Refusal:
        """Check what the server would run. Return the request with the present text of a script."""
        ...

    async def install(
        self,
        registration_request: RegistrationRequest,
        owner: str,
        require_allowed: Callable[[], None],
    ) -> UpstreamServer:
        """Install and start the server. `require_allowed` raises if it may not start any more."""
        ...

    async def grant_tools(self, server: str, owner: str, expires_at: datetime) -> None:
        """Grant the owner each listed tool of the server by its name, so that no call is asked."""
        ...

    async def uninstall(self, server: str, owner: str, reason: ShutdownReason) -> None: ...


class RegistrationService:
    """The methods that register and deregister servers, and the servers registered on this node."""

    def __init__(
        self,
        installer: ServerInstaller,
        registration_policy: RegistrationPolicy,
        pending_calls: PendingCalls,
        audit_log: AuditLog,
        clock: WallClock = lambda: datetime.now(UTC),
        *,
        tools_of: Callable[[Actor, str], list[str]] = lambda actor, server: [],
        stamp: Callable[[dict[str, object]], Answer] = lambda answer: answer,
    ) -> None:
        self.registration_policy = registration_policy
        self._tools_of = tools_of
        # Completes a result for clients of the modern era.
        self._stamp = stamp
        self._installer = installer
        self._registered = registration_policy.registered
        self._name_registry = registration_policy.names
        self._pending_calls = pending_calls
        self._audit_log = audit_log
        self._settings = registration_policy.settings
        self._clock = clock
        self._background_tasks = BackgroundTasks("servers that were registered")
        self._is_ending = False
        self._trouble_log = TroubleLog(
            log, "Cannot load registered servers: %s", "The registered servers are loaded."
        )

    async def open(self) -> None:
        """Load the owners of names, and start the servers that outlive a restart of the gateway."""
        try:
            found = await self._name_registry.load()
        except Unavailable as error:
            self._trouble_log.begin(error)
            return
        self._trouble_log.end()
        for each in found:
            if self._settings.is_kept and each.entry and each.server not in self._registered:
                self._background_tasks.start(
                    self._restart_stored(each.server, each.created_by, each.entry)
                )

    def check(self, keep_alive_seconds: float) -> None:
        """End the servers that have expired. Load the names again if that failed before."""
        now = self._clock()
        if not self._name_registry.is_loaded and not len(self._background_tasks):
            self._background_tasks.start(self.open())
        for id, guest in list(self._registered.items()):
            if guest.expires_at is not None and guest.expires_at <= now:
                self._on_session_closed(id, GATEWAY, "it has been there for as long as it may")

    def stop(self) -> None:
        """Cancel pending work before the gateway ends. The servers end with it."""
        self._is_ending = True
        self._background_tasks.cancel()

    # Registration.

    @method("mgp/discovery/register", MgpExtension.DISCOVERY)
    async def _register(self, request: MethodRequest) -> None:
        await self.register(request, registration.decode_registration(request.params))

    async def register(self, request: MethodRequest, wish: RegistrationRequest) -> None:
        """Start the wanted server, ask a person about it, or refuse. The call is answered later.

        Raises Unavailable.
        """
        actor = request.actor
        if not self._name_registry.is_loaded:
            await self._name_registry.load()
        refusal = self.registration_policy.registration_refusal(actor, wish)
        if refusal is None:
            prepared = await self._installer.prepare(wish)
            if isinstance(prepared, Refusal):
                refusal = prepared
            else:
                wish, refusal = (
                    prepared,
                    self.registration_policy.registration_refusal(actor, prepared),
                )
        if refusal is not None:
            self._record(request, wish, AuditResult.BLOCKED, refusal.reason)
            request.call.refuse_with(refusal)
        elif self.registration_policy.effect(actor, wish) is Effect.ALLOW:
            self._background_tasks.start(self._reply(request, self._start_server(request, wish)))
        else:
            self._request_approval(request, wish).start(
                partial(self._reply_approved, request, wish)
            )

    def _request_approval(
        self, request: MethodRequest, registration_request: RegistrationRequest
    ) -> PendingCall:
        """Create an approval request for an actor that has no grant for this registration."""
        holding, actor = self._pending_calls, request.actor
        party, redact, entry = actor.party, holding.redact, rules.to_entry(registration_request)
        draft = ApprovalDraft(
            kind=ApprovalKind.REGISTRATION,
            asker=party,
            server=registration_request.id,
            digest=call_digest(
                party, registration_request.id, "", REGISTER_METHOD, entry, holding.key
            ),
            message=str(
                redact(
                    f"{party} wants to register {registration_request.id}: "
                    f"{summarize_request(registration_request)}"
                )
            ),
            about={
                name: redact(value)
                for name, value in describe_request(registration_request).items()
            },
            trace=request.call.ensure_trace_id(),
        )
        action = ApprovedRegistration(
            request.call,
            partial(self.registration_policy.registration_refusal, actor, registration_request),
        )
        return PendingCall(holding, request.call, request.frame, draft, action)

    async def _start_server(
        self, request: MethodRequest, registration_request: RegistrationRequest
    ) -> Answer:
        """Start an allowed server. The permission is checked again right before the start."""
        actor = request.actor
        is_approved = bool(request.call.permitted_by)
        demand = partial(
            self.registration_policy.require_startable,
            actor,
            registration_request,
            is_approved=is_approved,
        )
        demand(None)
        ends_at = self._clock() + self._settings.max_lifetime
        guest = RegisteredServer(
            registration_request,
            actor.party,
            None if self._is_kept(registration_request) else ends_at,
        )
        self._registered[registration_request.id] = guest
        try:
            await self._record_intent(request, registration_request)
            server = await self._install_and_connect(guest, lambda: demand(guest))
        except BaseException as error:
            if self._registered.get(registration_request.id) is guest:
                del self._registered[registration_request.id]
            self._record(request, registration_request, AuditResult.FAILURE, str(error))
            raise
        if self._registered.get(registration_request.id) is not guest:
            raise Unavailable(
                f"server {registration_request.id!r} was deregistered while it started"
            )
        self._record(request, registration_request, AuditResult.SUCCESS)
        self._bind_to_session(request, registration_request.id, guest)
        return {
            "id": registration_request.id,
            "status": server.state,
            "trust_level": "sandboxed",
            "created_by": guest.owner,
            "lifetime": "session"
            if self._ends_with_session(registration_request)
            else "deregistered",
            "tools": self._tools_of(actor, registration_request.id),
        }

    def _record_intent(
        self, request: MethodRequest, registration_request: RegistrationRequest
    ) -> Awaitable[None]:
        """Record durably that a server is about to start. Raises Unavailable."""
        ask, type = request.call.permitted_by, AuditType.SERVER_REGISTERED
        facts = AuditFacts(
            server=registration_request.id,
            result=AuditResult.PENDING,
            trace=request.call.ensure_trace_id(),
            details={"approval": ask} if ask else {},
        )
        untrusted = _describe_request(registration_request)
        return self._audit_log.insist(
            self._audit_log.event(type, request.actor, untrusted=untrusted, **facts)
        )

    def _record(
        self,
        request: MethodRequest,
        registration_request: RegistrationRequest,
        result: AuditResult,
        why: str = "",
    ) -> None:
        self._audit_log.record(
            AuditType.SERVER_REGISTERED,
            request.actor,
            server=registration_request.id,
            result=result,
            trace=request.call.ensure_trace_id(),
            untrusted=_describe_request(registration_request, why),
        )

    async def _install_and_connect(
        self, registered: RegisteredServer, require_allowed: Callable[[], None]
    ) -> UpstreamServer:
        """Install the server and wait for its connection. Raise Unavailable if it fails."""
        id, owner = registered.registration.id, registered.owner
        await self._name_registry.reserve(
            registered.registration, owner, is_kept=self._is_kept(registered.registration)
        )
        server = await self._installer.install(registered.registration, owner, require_allowed)
        within = (server.options.connections.start_timeout + _ANSWER_MARGIN).total_seconds()
        try:
            async with asyncio.timeout(within):
                await server.first_start_tried.wait()
        except TimeoutError:
            pass
        if server.state is ServerLifecycleState.CONNECTED:
            await self._grant_tools(registered)
            return server
        reason = f"server {id!r} does not run: {server.reason or 'it did not start in time':.1200}"
        await self._installer.uninstall(id, owner, ShutdownReason.OPERATOR_REQUEST)
        await self._name_registry.mark_ended(id, owner)
        raise Unavailable(reason, UPSTREAM_FAILED)

    async def _grant_tools(self, registered: RegisteredServer) -> None:
        """Let the creator of a server made from code call its tools, if the policy says so.

        A tool that the server lists only later is not covered, so a person is asked about it.
        """
        id, owner, ends_at = registered.registration.id, registered.owner, registered.expires_at
        if ends_at is None or not self.registration_policy.is_called_unasked(
            registered.registration
        ):
            return
        try:
            await self._installer.grant_tools(id, owner, ends_at)
        except Unavailable:
            await self._installer.uninstall(id, owner, ShutdownReason.OPERATOR_REQUEST)
            await self._name_registry.mark_ended(id, owner)
            raise

    def _ends_with_session(self, registration_request: RegistrationRequest) -> bool:
        """Whether the server ends with the session. A server made from code always does. (D-31)"""
        return self._settings.ends_with_session or registration_request.has_code

    def _is_kept(self, registration_request: RegistrationRequest) -> bool:
        return self._settings.is_kept and not self._ends_with_session(registration_request)

    def _bind_to_session(
        self, request: MethodRequest, id: str, registered: RegisteredServer
    ) -> None:
        """End the server together with its client's session, if `_ends_with_session` says so."""
        session = request.session
        if session is None or not self._ends_with_session(registered.registration):
            return
        leave = partial(
            self._on_session_closed,
            id,
            registered.owner,
            "the session of its creator has ended",
            registered,
        )
        if session.is_closed:
            leave()
        else:
            session.on_close[self, id] = leave

    async def _restart_stored(self, id: str, owner: str, entry: Mapping[str, object]) -> None:
        """Start a server again after a restart, if it could still be registered today."""
        try:
            wish = registration.request_of_entry(id, entry)
            prepared = await self._installer.prepare(wish)
            problem = self.registration_policy.refusal_reason(wish)
            if id in self.registration_policy.configured_names():
                problem = "a file has a server of this id now"
            if isinstance(prepared, Refusal) or problem is not None:
                reason = problem if not isinstance(prepared, Refusal) else prepared.reason
                log.warning("Server %r of %s could not be restored: %s", id, owner, reason)
                return
            self._registered[id] = RegisteredServer(prepared, owner, None)
            await self._installer.install(prepared, owner, lambda: None)
        except (MalformedMessage, Unavailable) as error:
            self._registered.pop(id, None)
            log.warning("Server %r of %s could not be restored: %s", id, owner, error)

    # Deregistration.

    @method("mgp/discovery/deregister", MgpExtension.DISCOVERY)
    async def _deregister(self, request: MethodRequest) -> None:
        unwanted, actor = registration.decode_deregistration(request.params), request.actor
        guest = self._registered.get(unwanted.id)
        is_owner = guest is not None and guest.owner == actor.party != ""
        rules = self.registration_policy.may_administer(actor, unwanted.id)
        if guest is None or not (is_owner or rules):
            raise MalformedMessage(NOT_FOUND_TEXT, INVALID_PARAMS)
        self._background_tasks.start(
            self._reply(
                request, self._deregister_server(unwanted.id, actor, unwanted.reason, not is_owner)
            )
        )

    async def _deregister_server(self, id: str, actor: Actor, why: str, frees: bool) -> Answer:
        was_there = await self._remove_server(id, actor.party, why, frees=frees)
        return {"id": id, "deregistered": was_there}

    def _on_session_closed(
        self, id: str, by: str, why: str, registered: RegisteredServer | None = None
    ) -> None:
        if self._is_ending or (
            registered is not None and self._registered.get(id) is not registered
        ):
            return
        self._background_tasks.start(self._remove_in_background(id, by, why))

    async def _remove_in_background(self, id: str, by: str, why: str) -> None:
        await self._remove_server(id, by, why)

    async def _remove_server(self, id: str, by: str, why: str, *, frees: bool = False) -> bool:
        """Let active calls finish, then end the server. Return whether it existed."""
        guest = self._registered.pop(id, None)
        if guest is None:
            return False
        self._audit_log.record(
            AuditType.SERVER_DEREGISTERED,
            by,
            server=id,
            details={"created_by": guest.owner},
            untrusted={"reason": why[:1000]} if why else {},
        )
        await self._installer.uninstall(id, guest.owner, ShutdownReason.OPERATOR_REQUEST)
        try:
            await (
                self._name_registry.release(id)
                if frees
                else self._name_registry.mark_ended(id, guest.owner)
            )
        except Unavailable as error:
            log.warning("The removal of server %r could not be stored yet: %s", id, error)
        return True

    # Answers.

    async def _reply_approved(
        self, request: MethodRequest, registration_request: RegistrationRequest
    ) -> None:
        await self._reply(request, self._start_server(request, registration_request))

    async def _reply(self, request: MethodRequest, reply: Awaitable[Answer]) -> None:
        """Answer the request with the result. A client that has disconnected gets no answer."""
        call = request.call
        try:
            answer = {**await reply}
            if call.method == CALL_TOOL:
                answer = _as_tool_result(answer)
        except (Unavailable, MalformedMessage) as error:
            if not call.client_stream.is_final:
                call.fail(error)
            return
        if not call.client_stream.is_final:
            told = answer if request.session is not None else self._stamp(answer)
            call.deliver_answer(jsonrpc.make_result(call.client_request_id, told))


def _as_tool_result(answer: Answer) -> dict[str, object]:
    """Return the answer as the result of `create_tool`, with the names to call."""
    names = [f"{answer['id']}__{tool}" for tool in cast("Sequence[str]", answer["tools"])]
    said = f"{answer['id']} runs. Call its tools with call_tool: {', '.join(names)}"
    structured = {**answer, "tools": names}
    content = [{"type": "text", "text": said}]
    return {"content": content, "structuredContent": structured, "isError": False}


_UNSAFE_PATTERN: Final = re.compile(r"[^a-z0-9]+")
_MAX_ID_LENGTH: Final = 40
_INSTRUCTIONS: Final = (
    "Write one Python file that defines a function for each tool. Its parameters, with types, are "
    "the arguments, its docstring is the description, and its return value is the answer. Import "
    "only the modules that are named here. Then send the text as `code`, with this id."
)


class GeneratedTools:
    """Lets agents that may register code create a missing tool. (MGP §16.6)"""

    def __init__(
        self, registrations: RegistrationService, policy: CodePolicy, *, is_tool_listed: bool
    ) -> None:
        self._registrations = registrations
        self._registration_policy = registrations.registration_policy
        self._hints = {**policy_hints(policy), "max_code_size_bytes": MAX_CODE_BYTES}
        # Whether clients list `create_tool`, and so need not speak MGP.
        self._is_tool_listed = is_tool_listed

    def may_create(self, actor: Actor) -> bool:
        rules = self._registration_policy
        if not rules.code_goes_unasked or not (rules.settings.from_network or actor.is_local):
            return False
        wish = WantedServer(f"{rules.settings.namespace}.tool", code=" ")
        return rules.effect(actor, wish) is Effect.ALLOW

    async def create_from_code(self, request: MethodRequest, arguments: Mapping[str, Raw]) -> None:
        await self._registrations.register(
            request, registration.decode_code_registration(arguments)
        )

    async def create(
        self, request: MethodRequest, tool_request: ToolRequestParams
    ) -> Mapping[str, object] | None:
        """Return instructions for creating the tool, or None if the caller may not create one."""
        by_tool = self._is_tool_listed and request.call.method == CALL_TOOL
        speaks = request.terms is not None and MgpExtension.DISCOVERY in request.terms.extensions
        if not (by_tool or speaks) or not self._registration_policy.code_goes_unasked:
            return None
        id = self._find_free_id(request, tool_request)
        if id is None:
            return None
        way: dict[str, object] = {"method": REGISTER_METHOD}
        way["params"] = {"id": id, "transport": "stdio", "code": ""}
        if by_tool:
            way = {"tool": MetaTool.CREATE, "arguments": {"id": id, "code": ""}}
        return {
            "creation": {
                **way,
                "instructions": _INSTRUCTIONS,
                "described": [*tool_request.capabilities] or [tool_request.context],
                "language": "python",
                "code_safety": self._hints,
            }
        }

    def _find_free_id(self, request: MethodRequest, tool_request: ToolRequestParams) -> str | None:
        """Return an id that could be registered now, or None if there is none."""
        words = "-".join((*tool_request.capabilities, *tool_request.context.split())).lower()
        plain = _UNSAFE_PATTERN.sub("-", words)[:_MAX_ID_LENGTH].strip("-") or "tool"
        for number in range(1, self._registration_policy.settings.max_servers + 2):
            namespace = self._registration_policy.settings.namespace
            id = f"{namespace}.{plain}{f'-{number}' * (number > 1)}"
            # The code is not known yet, so any code that is not empty serves for the check.
            if (
                self._registration_policy.registration_refusal(
                    request.actor, WantedServer(id, code=" ")
                )
                is None
            ):
                return id
        return None
