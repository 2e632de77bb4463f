"""A participant that fulfils for people: on their word, and by rules they taught it. (MCPx §9.4)

People speak to it in chat: `approve ID`, `decline ID` for a proposal, `always RULE` for a rule that
it suggests, `forget RULE` for one in force. An id may be shortened to its first letters.

Rule 1: only those whom it was told of are people to it; the word of others is chat.
Rule 2: nobody approves what it proposed itself. (D-98)
Rule 3: for each that it fulfils by itself it says by which rule, and which precedents allowed it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from comity.rules import proposals
from comity.sdk.events import Chat, Fulfilment, Missed, Proposal, Response
from comity.sdk.learning import Bounds, Learning, Rule, arguments_of, operation_of
from comity.sdk.participant import Participant
from comity.wire.errors import MalformedMessage, Unavailable

log = logging.getLogger(__name__)

SHORT: Final = 8
SHORTEST: Final = 4
MOST_AT_ONCE: Final = 16
_SHOWN: Final = 200

type AskApproval = Callable[[Rule], Awaitable[str]]
"""Asked about each rule that is suggested: who approves it, or an empty text for nobody."""


class Orchestrator:
    """Fulfils proposals by `worker`, for `people`."""

    def __init__(
        self,
        me: Participant,
        worker: str,
        people: Iterable[str],
        *,
        learning: Learning | None = None,
        approve: AskApproval | None = None,
    ) -> None:
        self._me = me
        self._worker = worker
        self._people = frozenset(people)
        self.learning = learning or Learning(Bounds())
        self._approve = approve
        # From now on, not only from when it runs.
        self._events = me.events(Proposal, Fulfilment, Chat)
        self._doing: set[asyncio.Task[None]] = set()
        self._commands: dict[str, Callable[[str, str], Awaitable[None]]] = {
            "approve": self._approved,
            "decline": self._declined,
            "always": self._taught,
            "forget": self._forgot,
        }

    async def run(self) -> None:
        """Work for as long as the membership lasts."""
        try:
            async for event in self._events:
                self._hear(event)
        finally:
            self._events.close()
            for task in tuple(self._doing):
                task.cancel()

    def _hear(self, event: Proposal | Fulfilment | Chat | Missed) -> None:
        if isinstance(event, Proposal):
            self._begin(self._proposed(event))
        elif isinstance(event, Fulfilment):
            by = event.request.sender
            if by in self._people and event.is_first and event.is_as_proposed:
                self._begin(self._learn(event.proposal, by))
        elif isinstance(event, Chat) and event.sender in self._people:
            verb, _, rest = event.text.strip().partition(" ")
            command = self._commands.get(verb.lower())
            if command is not None and rest.strip():
                self._begin(command(rest.split()[0], event.sender))

    def _begin(self, deed: Awaitable[None]) -> None:
        """Each deed on its own: a worker that takes long holds up nobody else."""
        task = asyncio.ensure_future(self._contained(deed))
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _contained(self, deed: Awaitable[None]) -> None:
        try:
            await deed
        except (Unavailable, MalformedMessage, PermissionError, TimeoutError) as problem:
            log.warning("an orchestrator could not act: %s", problem)

    async def _proposed(self, event: Proposal) -> None:
        known = self._me.proposal(event.id)
        if known is None or known.proposer == self._me.id:
            return
        worker = self._worker_of(known)
        rule = self.learning.rule_for(known, worker, datetime.now(UTC))
        if rule is None or len(self._doing) > MOST_AT_ONCE:
            await self._tell(
                f"{known.proposer} proposes {_shown(known)}: say `approve {known.id[:SHORT]}` or "
                f"`decline {known.id[:SHORT]}`"
            )
            return
        answer = await self._me.fulfil(known, to=worker)
        precedents = ", ".join(id[:SHORT] for id in rule.precedents)
        await self._tell(
            f"{_outcome(answer)} {known.id[:SHORT]} by rule {rule.id}, approved by "
            f"{rule.approved_by}; precedents: {precedents}",
        )

    async def _approved(self, said: str, by: str) -> None:
        known = await self._meant(said, by)
        if known is None:
            return
        answer = await self._me.fulfil(known, to=self._worker_of(known))
        await self._tell(f"{_outcome(answer)} {known.id[:SHORT]} on the word of {by}")
        await self._learn(known, by)

    async def _declined(self, said: str, by: str) -> None:
        known = await self._meant(said, by)
        if known is None:
            return
        self.learning.decided(known, self._worker_of(known), by, datetime.now(UTC), approved=False)
        await self._me.chat(f"{by} declined {known.id[:SHORT]}", to=(known.proposer, by))

    async def _learn(self, known: proposals.Proposal, by: str) -> None:
        """A decision of a person is a precedent, and may be one too many to be asked again."""
        rule = self.learning.decided(known, self._worker_of(known), by, datetime.now(UTC))
        if rule is None:
            return
        await self._tell(f"I could {rule.words()}; say `always {rule.id}` if I should")
        approver = "" if self._approve is None else await self._approve(rule)
        if approver:
            await self._taught(rule.id, approver)

    async def _taught(self, said: str, by: str) -> None:
        rule = self.learning.approve(said, by)
        known = "there is no such rule to approve, or it is about what you propose yourself"
        await self._tell(known if rule is None else f"rule {rule.id} is in force: {rule.words()}")

    async def _forgot(self, said: str, by: str) -> None:
        is_gone = self.learning.forget(said)
        await self._tell(f"rule {said:.40} is {'forgotten' if is_gone else 'not known'}")

    async def _meant(self, said: str, by: str) -> proposals.Proposal | None:
        """The one open proposal whose id begins so, unless whoever speaks made it."""
        found = [each for each in self._me.proposals if each.id.startswith(said)]
        if len(said) < SHORTEST or len(found) != 1:
            await self._tell(f"{said:.40} is no open proposal, or more than one")
            return None
        if found[0].proposer == by:
            await self._tell(f"{by} cannot approve what {by} proposed")
            return None
        return found[0]

    def _worker_of(self, known: proposals.Proposal) -> str:
        return known.target[0] if known.target else self._worker

    async def _tell(self, text: str) -> None:
        """To the people, and for all to see."""
        await self._me.chat(text)


def _shown(known: proposals.Proposal) -> str:
    """A stranger's values, on one line and not endless."""
    arguments = arguments_of(known)
    said = known.params if arguments is None else arguments
    text = msgspec.json.encode(said).decode(errors="replace")
    return f"{operation_of(known)} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"


def _outcome(answer: Response) -> str:
    return "fulfilled" if answer.error is None else "failed to fulfil"
