"""What each server may do itself: decided before it is greeted, told to it, and kept true. (MGP §3)

Rule 1: our record is the only truth. What a server answers is an acknowledgement; grants inside of
        it are ignored, and told in the log. (D-08, S1)
Rule 2: decisions follow from one snapshot of grants; they are made anew when it is another, or when
        one of them has expired, and never on the way of a call that finds neither. (D-11)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.grants import Clock, Judge
from comity.kernel.permission_audit import PermissionAudit
from comity.rules.permissions import ALIASES, SUBJECT, ApprovalPolicy, Decided, decide, full_names
from comity.rules.policies import OnDenied, ServerPolicy
from comity.wire import jsonrpc
from comity.wire.errors import METHOD_NOT_FOUND, PERMISSION_DENIED, MalformedMessage, Unavailable
from comity.wire.grants import PERMISSION
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.lifecycle import moment
from comity.wire.negotiation import Statement
from comity.wire.parties import GATEWAY, Actor, PartyKind
from comity.wire.security import ASK_TO_WAIT, TELL_DECISION, Decision

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""How long a server may take to say that it heard; its start waits for no longer."""

MOST_NEEDS: Final = 200
MOST_CLAIMED: Final = 16 * 1024

type Speak = Callable[[str, Mapping[str, object]], Awaitable[Frame]]
"""Asks a server something on its own link; raises Unavailable."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A server that has just said who it is, and was not yet told to begin."""

    server: str
    said: Statement | None
    speak: Speak | None = None


@dataclass(slots=True)
class Permit:
    """How the permissions of one server stand; `generation` counts how often that changed."""

    server: str
    declared: tuple[str, ...] = ()
    of_tools: tuple[str, ...] = ()
    trust_level: str | None = None
    decided: dict[str, Decided] = field(default_factory=dict[str, Decided])
    generation: int = 0
    access: object = None
    expires_at: datetime | None = None
    speak: Speak | None = None
    # What it was last told of each permission, and under which number it was told to wait.
    told: dict[str, Decision] = field(default_factory=dict[str, Decision])
    request_id: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.declared, *self.of_tools)))[:MOST_NEEDS]

    def missing(self, needs: Iterable[str]) -> dict[str, Decided]:
        """Those of the needs that are not approved."""
        found = {name: self.decided.get(name, _UNDECIDED) for name in needs}
        return {n: d for n, d in found.items() if d.decision is not Decision.APPROVED}


_UNDECIDED: Final = Decided(Decision.DEFERRED, GATEWAY, "nobody has decided yet")
_UNKNOWN: Final = Decided(Decision.DEFERRED, GATEWAY, "what is allowed is not known just now")
_NEVER: Final = object()


class Permits:
    """The permissions of all servers."""

    def __init__(
        self,
        policy_of: Callable[[str], ServerPolicy],
        grants: Judge | None = None,
        identity: Callable[[], object] = lambda: None,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._policy_of = policy_of
        self._grants = grants
        self._identity = identity
        self._clock = clock
        self._servers: dict[str, Permit] = {}
        self._questions = 0
        self._chores = Chores("the permissions")
        self._watchers: list[Callable[[str], None]] = []
        # What somebody said that a server needs, beside what it says itself; no more than a wish.
        self.testified: dict[str, tuple[str, ...]] = {}
        # Who writes down what nobody has said just now, but follows.
        self.audit: PermissionAudit | None = None

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Have a watcher told of each server whose permissions stand otherwise than before."""
        self._watchers.append(watcher)

    def of(self, server: str) -> Permit:
        """How a server's permissions stand now."""
        permit = self._servers.get(server)
        if permit is None:
            permit = self._servers[server] = Permit(server, access=_NEVER)
        if permit.access is not self._identity() or _has_passed(permit.expires_at, self._clock):
            self._decide(permit)
        return permit

    def need(self, server: str, names: Iterable[str]) -> None:
        """Note what the tools of a server need beside what it declared itself."""
        permit = self.of(server)
        needed = tuple(dict.fromkeys(names))[:MOST_NEEDS]
        if needed != permit.of_tools:
            permit.of_tools = needed
            self._decide(permit)

    async def meet(self, meeting: Meeting) -> None:
        """Decide what a server declares that it needs. Raises Unavailable where it is rejected."""
        permit = self.of(meeting.server)
        said = meeting.said
        declared = () if said is None else said.permissions
        declared = (*declared, *self.testified.get(meeting.server, ()))
        aliases = [name for name in declared if name in ALIASES]
        if aliases:
            log.warning(
                "server %r: permissions named %s; their full names are %s",
                *(meeting.server, ", ".join(aliases), ", ".join(full_names(aliases))),
            )
        permit.declared = full_names(declared)
        permit.trust_level = None if said is None else said.trust_level
        permit.speak, permit.told, permit.request_id = meeting.speak, {}, ""
        self._decide(permit, is_new=True)
        self._reject(permit)
        if self._policy_of(permit.server).approval is not ApprovalPolicy.INTERACTIVE:
            # Where nobody is asked, a server need only hear of what it does not get.
            approved = permit.decided.keys() - permit.missing(permit.decided).keys()
            permit.told = dict.fromkeys(approved, Decision.APPROVED)
        await self._tell(permit)

    def forget(self, server: str) -> None:
        self._servers.pop(server, None)
        if self.audit is not None:
            self.audit.dismissed(server)

    def look(self) -> None:
        """Have decisions made anew that are due, though nobody calls just now."""
        for server in list(self._servers):
            self.of(server)

    async def settle(self) -> None:
        """Until every server has been told what it was to be told."""
        await self._chores.finish()

    def stop(self) -> None:
        self._chores.cancel()

    def _decide(self, permit: Permit, *, is_new: bool = False) -> None:
        before, policy = permit.decided, self._policy_of(permit.server)
        permit.access = self._identity()
        decided: dict[str, Decided] = {}
        for name in permit.needs:
            decided[name] = self._decided(permit, name, policy)
        permit.decided = decided
        permit.expires_at = min(
            (each.expires_at for each in decided.values() if each.expires_at is not None),
            default=None,
        )
        if decided == before and not is_new:
            return
        permit.generation += 1
        if self.audit is not None:
            self.audit.decided(permit.server, decided)
        for watcher in self._watchers:
            watcher(permit.server)
        if not is_new and permit.speak is not None:
            self._chores.start(self._tell(permit))

    def _decided(self, permit: Permit, name: str, policy: ServerPolicy) -> Decided:
        judged = None
        try:
            if self._grants is not None:
                actor = Actor(SUBJECT + permit.server, PartyKind.SERVER)
                judged = self._grants.judge(actor, PERMISSION, name, "")
        except Unavailable:
            permit.access = _NEVER
            return _UNKNOWN
        return decide(name, judged, policy.approval, policy.permissions)

    def _reject(self, permit: Permit) -> None:
        if self._policy_of(permit.server).on_denied is not OnDenied.REJECT:
            return
        denied = permit.missing(permit.declared)
        if denied:
            told = ", ".join(f"{name} ({each.decision})" for name, each in denied.items())
            raise Unavailable(
                f"server {permit.server!r} needs what it was not given: {told:.500}; approve it "
                f"with `comity permissions approve {permit.server} PERMISSION` and restart it",
                PERMISSION_DENIED,
            )

    async def _ask_to_wait(self, permit: Permit) -> None:
        """Tell a server that an operator has yet to decide, if it can be told. (MGP §3.5)"""
        waiting = [n for n, d in permit.decided.items() if d.decision is Decision.DEFERRED]
        permit.told |= dict.fromkeys(waiting, Decision.DEFERRED)
        policy = self._policy_of(permit.server).approval
        if not waiting or permit.speak is None or policy is not ApprovalPolicy.INTERACTIVE:
            return
        permit.request_id = self._new_id()
        params = {
            "request_id": permit.request_id,
            "permissions": waiting,
            "policy": str(policy),
            "message": "Waiting for operator approval",
        }
        await self._say(permit, ASK_TO_WAIT, params)

    async def _tell(self, permit: Permit) -> None:
        """Tell a server what was decided since it was last told anything. (MGP §3.6)"""
        news = {n: d for n, d in permit.decided.items() if permit.told.get(n) is not d.decision}
        if any(each.decision is Decision.DEFERRED for each in news.values()):
            # It was approved until now, or is needed only now: somebody is asked anew. (D-11)
            await self._ask_to_wait(permit)
        final = {n: d for n, d in news.items() if d.decision is not Decision.DEFERRED}
        permit.told |= {name: each.decision for name, each in final.items()}
        if not final or permit.speak is None:
            return
        ends = [each.expires_at for each in final.values() if each.expires_at is not None]
        params: dict[str, object] = {
            "request_id": permit.request_id or self._new_id(),
            "grants": {name: str(each.decision) for name, each in final.items()},
            "approved_by": ", ".join(dict.fromkeys(each.by for each in final.values())),
            **({"expires_at": moment(min(ends))} if ends else {}),
        }
        await self._say(permit, TELL_DECISION, params)

    async def _say(
        self, permit: Permit, names: Iterable[str], params: Mapping[str, object]
    ) -> None:
        """Ask by the method's first name, then by its other; no answer grants anything."""
        assert permit.speak is not None
        for name in names:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await permit.speak(name, params)
            except (Unavailable, MalformedMessage, TimeoutError) as error:
                log.info("server %r was not told by %s: %s", permit.server, name, error)
                return
            refused = jsonrpc.error_of(answer)
            if refused is None or refused.code != METHOD_NOT_FOUND.code:
                self._ignore_grants(permit.server, answer)
                return

    def _ignore_grants(self, server: str, answer: Frame) -> None:
        try:
            said = {} if answer.result is UNSET else jsonrpc.members(answer.result)
            claimed = said.get("grants")
            if claimed is None:
                return
            grants = jsonrpc.value(claimed) if len(claimed) <= MOST_CLAIMED else "too long to read"
        except MalformedMessage:
            return
        log.warning("server %r answered with grants of its own: they count for nothing", server)
        if self.audit is not None:
            self.audit.claimed(server, {"grants": grants})

    def _new_id(self) -> str:
        self._questions += 1
        return f"perm-{self._questions:03}"


def _has_passed(end: datetime | None, clock: Clock) -> bool:
    return end is not None and end <= clock()
