"""The inbox: every question to an authority, who may answer it, and who waits for the answer.

Rule 1: a question is kept before anybody is asked, and an answer before anybody acts on it.
Rule 2: an answer is good for one call of exactly what was asked about, by whoever asked; the store
        gives it to one of all who try. What a tool is, and who may call it, is looked at once more.
Rule 3: only people answer, and nobody its own, unless that was granted, or the operator lets those
        who may do everything. (D-98) What decides is a grant, and never a default.
Rule 4: a client that leaves loses nothing: the same call, made again, finds its answer.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.grants import Clock, Judge
from comity.kernel.journal import Journal
from comity.ports.asking import AskRecords
from comity.rules.answers import marked, why_unfit
from comity.rules.asks import approvers, new_ask_id, why_not
from comity.rules.patterns import ANY
from comity.wire.asks import ANSWER, ANSWER_OWN, Answer, Ask, Kind, State, Verdict
from comity.wire.audit import Event, Result, Type
from comity.wire.errors import (
    ACCESS_DENIED,
    EXHAUSTED,
    INVALID_PARAMS,
    MalformedMessage,
    Unavailable,
)
from comity.wire.grants import ADMIN_READ, EVERYTHING, Effect, Source
from comity.wire.parties import GATEWAY, LOCAL_OPERATOR, Actor, PartyKind

log = logging.getLogger(__name__)

OPEN: Final = (State.PENDING, State.DEFERRED)
NOT_THERE: Final = "there is no such ask, or it is not yours to see; `comity asks` lists them"

type Watcher = Callable[[Ask], None]
"""Who hears of each ask that is new, or other than before."""


@dataclass(frozen=True, slots=True)
class AskOptions:
    """How long things last, and how much may be asked at once.

    `hold` is how long a client without news is kept waiting; `lasts` how long an answer is good
    for; `declined_for` how long the same call is declined without asking anybody again;
    `approve_own` whether a person with the grant of everything may approve its own requests.
    """

    expires: timedelta = timedelta(minutes=15)
    lasts: timedelta = timedelta(minutes=15)
    hold: timedelta = timedelta(seconds=45)
    declined_for: timedelta = timedelta(minutes=5)
    most_open: int = 10_000
    most_of_one: int = 100
    public_url: str = ""
    approve_own: bool = False


class Approvals:
    """Asks on this node: opened, watched, answered, ended."""

    def __init__(
        self,
        asks: AskRecords,
        judge: Judge,
        journal: Journal | None = None,
        options: AskOptions | None = None,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.asks = asks
        self.options = options or AskOptions()
        self.clock = clock
        self.watchers: list[Watcher] = []
        # Who hears only of what was done here: of several nodes, one tells the world of it.
        self.tellers: list[Watcher] = []
        # What else speaks against somebody's answer to a kind of ask, and what follows from one.
        self.scruples: dict[Kind, Callable[[Ask, Actor], str | None]] = {}
        self.deeds: dict[Kind, Callable[[Ask, Actor], Awaitable[None]]] = {}
        self._key = secrets.token_bytes(32)
        self._judge = judge
        self._journal = journal
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._opened: dict[str, set[str]] = {}
        self._askers: dict[str, str] = {}
        self._chores = Chores("the inbox")

    # Who asks.

    def may_answer_own(self, actor: Actor) -> bool:
        """Whether somebody may answer for itself: a person, by a grant that says just that.

        With `approve_own` the grant of every verb on every target says it too.
        """
        if actor.kind is not PartyKind.PERSON:
            return False
        try:
            judged = self._judge.judge(actor, ANSWER_OWN, "", "")
        except Unavailable:
            return False
        grant = judged.grant
        if judged.effect is not Effect.ALLOW or grant is None:
            return False
        held = (grant.subject, grant.verb, grant.target)
        is_full = held == (actor.party, ANY, EVERYTHING)
        return (
            grant.verb == ANSWER_OWN
            or grant.source is Source.BUILT_IN
            or (is_full and self.options.approve_own)
        )

    @property
    def has_open(self) -> bool:
        """Whether anything that was asked here still waits for an answer, or for its use."""
        return bool(self._askers)

    def is_own(self, actor: Actor) -> bool:
        """Whether the party that asks may answer it too: the local user does so by its token."""
        return self.may_answer_own(LOCAL_OPERATOR if actor.lacks_token else actor)

    async def open(self, ask: Ask) -> Ask:
        """Keep a question, and have its authorities told. Raises Unavailable where it is too much.

        One that is open already, or was accepted, is given in its stead.
        """
        own = len(self._opened.get(ask.asker, ()))
        if own >= self.options.most_of_one or len(self._askers) >= self.options.most_open:
            raise Unavailable(
                "too many questions wait for an answer already", EXHAUSTED, self.options.hold
            )
        # Counted before it is kept, so that many at once cannot all be the last.
        self._opened.setdefault(ask.asker, set()).add(ask.id)
        self._askers[ask.id] = ask.asker
        try:
            kept = await self.asks.open(ask)
        except BaseException:
            self._forget(ask.id)
            raise
        if kept.id != ask.id:
            self._forget(ask.id)
            return kept
        self._note(Type.ASK_OPENED, kept, Result.PENDING, kept.asker, _about(kept))
        self._tell(kept)
        return kept

    def new(self, ask: Callable[[str, datetime, datetime], Ask]) -> Ask:
        """A question with an id of its own, from now until nobody can answer it any more."""
        now = self.clock()
        return ask(new_ask_id(now, secrets.token_bytes(10)), now, now + self.options.expires)

    async def until_other(self, ask: Ask, within: timedelta | None = None) -> Ask:
        """The ask once it is another than it was; or as it is, when the time is over."""
        left = (ask.expires_at - self.clock()).total_seconds()
        if within is not None:
            left = min(left, within.total_seconds())
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(ask.id, []).append(waiter)
        try:
            current = await self.asks.get(ask.id)
            if current is None or current.state is not ask.state:
                return current or ask
            async with asyncio.timeout(max(left, 0)):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._leave(ask.id, waiter)
        return await self.asks.get(ask.id) or ask

    async def put(self, ask: Ask) -> Ask:
        """Ask, and wait for what becomes of it."""
        ask = await self.open(ask)
        while ask.is_open and ask.expires_at > self.clock():
            ask = await self.until_other(ask)
        return await self.expired(ask) if ask.is_open else ask

    async def expired(self, ask: Ask) -> Ask:
        """Nobody has answered in time; or somebody has, in the last moment."""
        # Only what is past its time ends so, and an acceptance has a time of its own.
        while await self.sweep():
            current = await self.asks.get(ask.id)
            if current is None or not current.is_open:
                return current or ask
        return await self.asks.get(ask.id) or ask

    async def withdraw(self, ask: Ask, because: str) -> bool:
        """What was asked about is no longer to be had; False where it had ended before."""
        ended = await self.asks.end(ask.id, State.WITHDRAWN, self.clock())
        if ended is not None:
            self._ended(ended, because)
        return ended is not None

    async def use(self, ask: Ask, call: str) -> Ask | None:
        """Have an answer authorise one call; None where somebody else came first."""
        used = await self.asks.use(ask.id, call, self.clock())
        if used is not None:
            self._forget(used.id)
            self._note(Type.ASK_USED, used, Result.SUCCESS, used.asker, {"call": call})
            self._tell(used)
        return used

    async def restore(self, ask: Ask, call: str) -> None:
        """The call never left: the answer still stands."""
        restored = await self.asks.restore(ask.id, call)
        if restored is not None:
            self._note(Type.ASK_RESTORED, restored, Result.SUCCESS, GATEWAY, {"call": call})
            self._tell(restored)

    async def erase(self, ask: Ask) -> None:
        """Keep no longer what somebody filled in: whoever wanted it has it, or never will."""
        if ask.kind is Kind.INPUT and any(answer.content for answer in ask.answers):
            await self.asks.erase(ask.id)

    # Who answers.

    def why_not(self, ask: Ask, actor: Actor) -> str | None:
        """Why somebody cannot answer an ask; None where it can."""
        because = why_not(
            ask,
            actor,
            may_answer=self._may(actor, ANSWER, ask),
            may_answer_own=self.may_answer_own(actor),
        )
        scruple = self.scruples.get(ask.kind)
        return scruple(ask, actor) if because is None and scruple is not None else because

    def approvers(self, ask: Ask, actor: Actor) -> str:
        """Who can approve an ask, in words for somebody who may not know other names."""
        # Whoever asked without the operator token approves with it.
        judged = LOCAL_OPERATOR if actor.lacks_token else actor
        may = ask.quorum == 1 and self.why_not(ask, judged) is None
        return "you" if may else approvers(ask)

    def why_not_own(self, ask: Ask, actor: Actor) -> str:
        """Why a person who answers what others ask cannot answer this; empty for everybody else."""
        if actor.party != ask.asker or not self._may(actor, ANSWER, ask):
            return ""
        return self.why_not(ask, actor) or ""

    def may_see(self, ask: Ask, actor: Actor) -> bool:
        """Its asker, whoever may answer it, and whoever reads everything here."""
        if actor.party == ask.asker or self._may(actor, ANSWER, ask):
            return True
        return self._may(actor, ADMIN_READ, ask)

    async def get(self, actor: Actor, id: str) -> Ask:
        """One ask, for somebody who may see it. Raises MalformedMessage."""
        ask = await self.asks.get(id)
        if ask is None or not self.may_see(ask, actor):
            raise MalformedMessage(NOT_THERE, INVALID_PARAMS)
        return ask

    async def page(
        self, actor: Actor, states: Collection[State] = OPEN, after: str = "", limit: int = 250
    ) -> tuple[Sequence[Ask], str]:
        """Those that somebody may see, and after which to go on; an empty place is the end."""
        found = await self.asks.page(states, after, limit)
        following = found[-1].id if len(found) >= limit else ""
        return [ask for ask in found if self.may_see(ask, actor)], following

    async def answer(
        self,
        actor: Actor,
        id: str,
        verdict: Verdict,
        reason: str = "",
        content: Mapping[str, object] | None = None,
    ) -> Ask:
        """An authority's word, kept and in the journal when this returns. Raises."""
        ask = await self.get(actor, id)
        because = self.why_not(ask, actor)
        if because is not None:
            self._note(Type.ASK_ANSWERED, ask, Result.BLOCKED, actor.party, {"reason": because})
            raise MalformedMessage(because, ACCESS_DENIED)
        answer = Answer(actor.party, verdict, self.clock(), reason, content or {})
        unfit = why_unfit(ask, verdict, answer.content, answer.at)
        if unfit is not None:
            raise MalformedMessage(unfit, INVALID_PARAMS)
        answered = await self.decided(ask, answer)
        if answered is None:
            current = await self.asks.get(id) or ask
            state = "expired" if current.is_open else current.state
            raise MalformedMessage(f"this ask is {state} already", INVALID_PARAMS)
        deed = self.deeds.get(ask.kind)
        if deed is not None:
            await deed(answered, actor)
        return answered

    async def decided(self, ask: Ask, answer: Answer) -> Ask | None:
        """Keep the word of somebody whom a door has let decide this; None where it is too late.

        What was filled in may be a secret: the journal has no more of it than a mark.
        """
        answered = await self.asks.answer(ask.id, answer, answer.at + self.options.lasts)
        if answered is None:
            return None
        said: dict[str, object] = {"verdict": answer.verdict, "state": answered.state}
        said |= {"reason": answer.reason} if answer.reason else {}
        said |= {"content": marked(self._key, answer.content)} if answer.content else {}
        await self._kept(Type.ASK_ANSWERED, answered, answer.by, said)
        self._tell(answered)
        return answered

    # What others, and time, do.

    def changed(self, id: str) -> None:
        """The records of an ask are others, here or elsewhere; an empty id means of any."""
        for each in [id] if id else list(self._waiters):
            self.wake(each)
        if id and (self.watchers or id in self._askers):
            self._chores.start(self._reread(id))

    async def sweep(self) -> int:
        """End what is past its time; gives how many ended."""
        ended = await self.asks.expire(self.clock())
        for ask in ended:
            self._ended(ask)
            await self.erase(ask)
        return len(ended)

    def look(self, patience: float) -> None:
        if not len(self._chores):
            self._chores.start(self._sweep())

    def stop(self) -> None:
        self._chores.cancel()

    async def _sweep(self) -> None:
        try:
            await self.sweep()
        except Unavailable as error:
            log.debug("asks are not looked after just now: %s", error)

    async def _reread(self, id: str) -> None:
        """Somebody changed it on another node: whoever watches here hears of it too."""
        try:
            ask = await self.asks.get(id)
        except Unavailable:
            return
        is_known_here = id in self._askers
        if ask is None or not ask.is_open:
            self._forget(id)
        # That it is new was told when it was opened here.
        if ask is not None and (ask.answers or not ask.is_open or not is_known_here):
            for watcher in self.watchers:
                watcher(ask)

    def _ended(self, ask: Ask, because: str = "") -> None:
        said: dict[str, object] = {"state": ask.state}
        said |= {"reason": because} if because else {}
        self._note(Type.ASK_ENDED, ask, Result.BLOCKED, GATEWAY, said)
        self._tell(ask)

    def _tell(self, ask: Ask) -> None:
        self.wake(ask.id)
        self._heard(ask, (*self.tellers, *self.watchers))

    def _heard(self, ask: Ask, watchers: Sequence[Watcher]) -> None:
        if not ask.is_open:
            self._forget(ask.id)
        for watcher in watchers:
            try:
                watcher(ask)
            except Exception:
                log.exception("a watcher of asks failed")

    def _forget(self, id: str) -> None:
        asker = self._askers.pop(id, None)
        if asker is not None:
            own = self._opened[asker]
            own.discard(id)
            if not own:
                del self._opened[asker]

    def wake(self, id: str) -> None:
        for waiter in self._waiters.pop(id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _leave(self, id: str, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(id)
        if waiters is not None and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[id]

    def _may(self, actor: Actor, verb: str, ask: Ask) -> bool:
        """By a grant, never by a default: nobody is an authority because nobody said otherwise."""
        try:
            judged = self._judge.judge(actor, verb, ask.server, ask.tool)
        except Unavailable:
            return False
        return judged.effect is Effect.ALLOW and judged.grant is not None

    def _note(
        self, type: Type, ask: Ask, result: Result, by: str, said: Mapping[str, object]
    ) -> None:
        if self._journal is not None:
            self._journal.note(self._event(type, ask, result, by, said))

    async def _kept(self, type: Type, ask: Ask, by: str, said: Mapping[str, object]) -> None:
        if self._journal is not None:
            await self._journal.write(self._event(type, ask, Result.SUCCESS, by, said))

    def _event(
        self, type: Type, ask: Ask, result: Result, by: str, said: Mapping[str, object]
    ) -> Event:
        kind = PartyKind.SYSTEM if by == GATEWAY else _kind_of(by)
        details = {"ask": ask.id, "kind": ask.kind, **said}
        return Event(
            *(type, by, self.clock(), kind, ask.server, ask.tool, result),
            *(ask.trace, ask.call, details),
        )


def _about(ask: Ask) -> Mapping[str, object]:
    return {
        "message": ask.message,
        "about": ask.about,
        "digest": ask.digest,
        "expires_at": ask.expires_at.isoformat(),
        "quorum": ask.quorum,
    }


def _kind_of(party: str) -> PartyKind:
    prefix = party.partition(":")[0]
    return PartyKind(prefix) if prefix in PartyKind else PartyKind.AGENT
