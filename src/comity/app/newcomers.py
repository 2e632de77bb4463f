"""Servers that agents register, joined: what they bring is looked at, housed, and let go. (D-30)

Rule 1: trust is `sandboxed` and permissions are asked for, whatever is said and whatever the policy
        for the operator's own servers is.
Rule 2: what runs is what was looked at: a script is read once, and runs from a copy of its own.
"""

import os
import shutil
import stat
import tempfile
from asyncio import to_thread
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from comity.app.asking import Asking
from comity.app.bounding import TOOL_FILE, BoundProgram, bound_url, folders_of, guarded_pools
from comity.app.caring import Caring
from comity.app.inspecting import Inspecting
from comity.app.reaching import Pools, server_limits_of
from comity.app.residents import Residents
from comity.config import ServerSettings, Settings, Supervision
from comity.kernel.catalog import Kind
from comity.kernel.chores import Chores
from comity.kernel.creation import Creation
from comity.kernel.owned_names import OwnedNames
from comity.kernel.registration import Registrations, Stay
from comity.kernel.registration_notes import RegistrationNotes
from comity.kernel.registration_rights import Rights
from comity.kernel.servers import Server
from comity.kernel.snapshot import Snapshot
from comity.kernel.switchboard import AllServers
from comity.ports import Kept, Reach
from comity.rules.addresses import answers_problem
from comity.rules.code_safety import CodePolicy, Level, combined, hints
from comity.rules.permissions import SUBJECT, ApprovalPolicy, decide
from comity.rules.refusals import Refusal
from comity.rules.registering import Allowed, url_problem
from comity.rules.validators import unsafe
from comity.wire.errors import ACCESS_DENIED
from comity.wire.grants import CALL, PERMISSION, Effect, Grant
from comity.wire.lifecycle import Reason
from comity.wire.parties import GATEWAY, Actor, PartyKind
from comity.wire.registration import MOST_CODE, Wanted
from comity.wire.security import Decision, Trust

NETWORK: Final = "network.outbound"
STRICT: Final = combined(CodePolicy(Level.STRICT, "python"), {})
_STRICTER: Final = (ApprovalPolicy.DENY_ALL, ApprovalPolicy.CONFIG_ONLY)


@dataclass(slots=True)
class Newcomers:
    """Who looks at what is brought, and has rooms for it."""

    settings: Settings
    residents: Residents
    caring: Caring
    inspecting: Inspecting
    snapshot: Snapshot
    pools: Pools
    folders: tuple[Path, ...]
    _rooms: dict[str, Path] = field(default_factory=dict[str, Path])
    _networked: dict[str, bool] = field(default_factory=dict[str, bool])
    _chores: Chores = field(default_factory=lambda: Chores("newcomers"))

    def __post_init__(self) -> None:
        self.caring.tools.permits.watch(self._permitted)

    def names(self) -> Collection[str]:
        return {server.id for server in self.residents.settings.servers}

    async def prepare(self, wish: Wanted) -> Wanted | Refusal:
        if wish.url:
            _, name = url_problem(wish.url, frozenset(self.settings.registration_hosts))
            resolve = self.inspecting.resolver.resolve
            problem = answers_problem(await resolve(name)) if name else None
            return wish if problem is None else Refusal(ACCESS_DENIED, f"its url: {problem}")
        if wish.command and not wish.code and self._is_script(wish):
            code = await to_thread(read_script, wish.args[0], self.folders)
            if code is None:
                because = "there is no such script in a folder that the operator named"
                return Refusal(ACCESS_DENIED, because)
            wish = replace(wish, code=code)
        if not wish.code:
            return wish
        violations = await self.inspecting.examiner.violations(wish.code, STRICT)
        return unsafe("code", violations, hints(STRICT)) if violations else wish

    def _is_script(self, wish: Wanted) -> bool:
        return wish.command in self.settings.registration_commands and len(wish.args) == 1

    async def admit(self, wish: Wanted, owner: str, still: Callable[[], None]) -> Server:
        reach = self._reach(wish) if wish.url else await self._furnished(wish)
        try:
            if self._calls(wish):
                await self._grant(wish.id, owner)
            self.caring.tools.permits.testified[wish.id] = wish.permissions
            still()
            self.residents.admit(_settings_of(wish, self.settings), reach)
        except BaseException:
            await self._cleared(wish.id, owner)
            raise
        told = {**self.residents.descriptions[wish.id], "registered_by": owner}
        self.residents.descriptions[wish.id] = told
        return self.residents.servers.need(wish.id)

    async def dismiss(self, server: str, owner: str, reason: Reason) -> None:
        if self.residents.servers.get(server) is not None:
            await self.residents.dismiss(server, reason)
        await self._cleared(server, owner)

    def _reach(self, wish: Wanted) -> Reach:
        return bound_url(wish, self.pools, server_limits_of(self.settings))

    async def _furnished(self, wish: Wanted) -> Reach:
        """A folder of its own, with what it runs in it."""
        folder = Path(await to_thread(tempfile.mkdtemp, prefix="comity-registered-"))
        self._rooms[wish.id] = folder
        if wish.code:
            await to_thread((folder / TOOL_FILE).write_text, wish.code, "utf-8")
        return BoundProgram(wish, folder, self.settings, lambda: self._note_network(wish.id))

    async def _cleared(self, server: str, owner: str) -> None:
        self.caring.tools.permits.testified.pop(server, None)
        self._networked.pop(server, None)
        await self.snapshot.records.grants.revoke(owner, CALL, f"{server}/*")
        folder = self._rooms.pop(server, None)
        if folder is not None:
            await to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _calls(self, wish: Wanted) -> bool:
        """Whether its creator may call it: what was made on the spot is made to be called."""
        return wish.is_made or self.settings.registration_creator_may_call

    async def _grant(self, server: str, owner: str) -> None:
        grant = Grant(owner, CALL, f"{server}/*", Effect.ALLOW, granted_by=GATEWAY)
        await self.snapshot.records.grants.put(
            replace(grant, justification="it registered this server")
        )
        await self.snapshot.refresh()

    def _note_network(self, server: str) -> bool:
        self._networked[server] = found = self._may_use_network(server)
        return found

    def _may_use_network(self, server: str) -> bool:
        actor = Actor(SUBJECT + server, PartyKind.SERVER)
        judged = self.snapshot.grants.judge(actor, PERMISSION, NETWORK, "")
        policy = self.caring.policy(server)
        decided = decide(NETWORK, judged, policy.approval, policy.permissions)
        return decided.decision is Decision.APPROVED

    def _permitted(self, server: str) -> None:
        """Its permissions are others: what it has of the network it has since its start."""
        started_with = self._networked.get(server)
        if started_with is not None and started_with != self._may_use_network(server):
            self._networked.pop(server)
            self._chores.start(self.residents.servers.restart(server, GATEWAY))

    async def close(self) -> None:
        """The gateway ends: nothing of theirs is left."""
        self._chores.cancel()
        await self.pools.close()
        for folder in self._rooms.values():
            await to_thread(shutil.rmtree, folder, ignore_errors=True)


def read_script(name: str, folders: Collection[Path]) -> str | None:
    """What stands in a script below one of the folders; None where there is none to be run."""
    for folder in folders:
        root = folder.resolve()
        try:
            path = (root / name).resolve()
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, RuntimeError):
            # There is none, or its links lead in a circle.
            continue
        try:
            # A folder on the way may have become a link since it was looked at.
            is_inside = path.is_relative_to(root) and _place_of(opened, path).is_relative_to(root)
            is_file = stat.S_ISREG(os.fstat(opened).st_mode)
            found = os.read(opened, MOST_CODE + 1) if is_inside and is_file else None
        finally:
            os.close(opened)
        if found is not None:
            return _decoded(found)
    return None


def _place_of(opened: int, otherwise: Path) -> Path:
    """Where an open file is, by the kernel's own word where it gives one."""
    where = Path(f"/proc/self/fd/{opened}")
    return where.resolve() if where.exists() else otherwise


def _decoded(found: bytes) -> str | None:
    try:
        return found.decode("utf-8") if len(found) <= MOST_CODE else None
    except UnicodeDecodeError:
        return None


def _settings_of(wish: Wanted, settings: Settings) -> ServerSettings:
    """A server as nobody vouches for it. What it says that it needs approves nothing."""
    approval = settings.approval_policy
    policy: dict[str, Any] = {"trust": Trust.SANDBOXED}
    policy["approval_policy"] = approval if approval in _STRICTER else ApprovalPolicy.INTERACTIVE
    return ServerSettings(
        *(wish.id, wish.id, wish.transport),
        # What it is said to run: how it is really started, within bounds, the way to it knows.
        command=wish.command or ("code" if wish.code else ""),
        url=wish.url,
        supervision=Supervision(restart_policy=wish.restart_policy),
        trust_level="sandboxed",
        mgp={"trust_level": "sandboxed"},
        extensions=wish.extensions,
        policy=policy,
    )


def allowed_of(settings: Settings) -> Allowed:
    return Allowed(
        settings.registration_commands,
        frozenset(settings.registration_hosts),
        settings.registration_namespace,
        settings.registration_from_network,
        settings.registration_creating,
        settings.registration_most,
        settings.registration_most_of_one,
    )


def stay_of(settings: Settings) -> Stay:
    with_session = settings.registration_lives == "session"
    is_kept = settings.registration_keep and not with_session
    return Stay(with_session, settings.registration_longest, is_kept, settings.start_deadline)


def code_goes_unasked(settings: Settings) -> bool:
    """Whether the operator switched it on, and approves by policy. (MGP §16.6)"""
    is_local, approval = settings.identity_mode == "local", settings.approval_policy
    is_auto = approval == "auto_approve" or (approval == "auto" and is_local)
    return settings.registration_creating and is_auto


@dataclass(frozen=True, slots=True)
class Registering:
    """What was registered, and where it lives."""

    registrations: Registrations
    newcomers: Newcomers

    async def open(self) -> None:
        await self.registrations.open()

    def look(self, patience: float) -> None:
        self.registrations.look(patience)

    @property
    def creation(self) -> Creation:
        """Who lets tools be made that nobody has."""
        return Creation(self.registrations.rights, STRICT)

    def stop(self) -> None:
        self.registrations.stop()

    async def close(self) -> None:
        await self.newcomers.close()


def _tools_of(everything: AllServers, actor: Actor, server: str) -> list[str]:
    """The tools of a server that somebody may call, by that server's own names."""
    return list(everything.gate.names(actor, Kind.TOOL, server))


def receive_newcomers(
    residents: Residents, inspecting: Inspecting, asking: Asking, everything: AllServers
) -> Registering:
    """Have servers registered and deregistered at the door of all servers. (MGP §15.4)"""
    settings, snapshot = residents.settings, asking.snapshot
    allowed = allowed_of(settings)
    pools = guarded_pools(residents.pools, inspecting.resolver, allowed.hosts)
    newcomers = Newcomers(
        *(settings, residents, residents.caring, inspecting, snapshot),
        *(pools, folders_of(settings)),
    )
    names, chores = OwnedNames(snapshot.records.registrations), Chores("names of servers")
    snapshot.watch(Kept.REGISTRATIONS, lambda _: chores.start(names.changed()))
    rights = Rights(
        *(allowed, snapshot.grants, residents.servers, names, newcomers.names),
        code_goes_unasked=code_goes_unasked(settings),
    )
    notes = RegistrationNotes(asking.journal, asking.holding.redact)
    registrations = Registrations(newcomers, rights, asking.holding, notes, stay_of(settings))
    registrations.stamp = everything.introduction.stamped
    registrations.tools_of = partial(_tools_of, everything)
    registrations.join(everything.methods)
    return Registering(registrations, newcomers)
