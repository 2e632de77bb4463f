"""The store of approval requests against a model, for any order of steps.

The model knows nothing of states and tables. It keeps who said what, when, and from that follows
what a call may do: at most one for each approval, never by its asker's word, never too late, and
never of another tool than people were asked about.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, override

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from comity.approvals.model import (
    LIVE_STATES,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
    answer_refusal_reason,
    call_digest,
    new_request_id,
)
from comity.approvals.store import NOTICE_JOBS, SqlAsks
from comity.errors import MalformedMessage
from comity.mcp.actors import Actor, PrincipalKind
from comity.storage.changes import RecordKind
from comity.storage.work_queue import SqlWorkQueue
from tests.pace import at_length
from tests.support.inline_store import inline_parts, inline_records

START = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
LASTS = timedelta(minutes=10)
ANA, BEA, CEM = (f"person:{name}@example.org" for name in ("ana", "bea", "cem"))
PARTIES = ("agent:ci", "agent:other", ANA, BEA, CEM)
TOOLS = ("delete", "write")
NOTHING: dict[str, object] = {}

# Few values, so that the same is asked, answered and used again and again.
minutes = st.sampled_from([1, 1, 4, 5, 10])
which = st.integers(0, 5)
askers = st.sampled_from(["agent:ci", ANA])
tools = st.sampled_from(TOOLS)
paths = st.sampled_from(["/a", "/b"])


_RUNNER = asyncio.Runner()


def now[T](step: Coroutine[Any, Any, T]) -> T:
    return _RUNNER.run(step)


@dataclass(frozen=True)
class Terms:
    quorum: int = 1
    own: bool = False
    lasting: int = 30


terms = st.builds(Terms, st.sampled_from([1, 1, 2]), st.booleans(), st.sampled_from([5, 10, 30]))


@dataclass
class Told:
    """What the model knows of one ask."""

    id: str
    asker: str
    digest: str
    own: bool
    quorum: int
    until: datetime
    said: dict[str, ApprovalDecision] = field(default_factory=dict[str, ApprovalDecision])
    accepted: bool = False
    over: bool = False
    call: str = ""
    executions: int = 0

    def can_be_answered(self, at: datetime) -> bool:
        return not self.over and not self.accepted and at < self.until

    def can_be_used(self, at: datetime) -> bool:
        return self.accepted and not self.over and not self.call and at < self.until

    @property
    def is_live(self) -> bool:
        return not self.over and not self.call


class Inbox(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.asks = inline_records().approval_requests
        self.at = START
        self.told: list[Told] = []
        self.definitions: dict[str, int] = dict.fromkeys(TOOLS, 1)
        self.number = 0

    def digest(self, asker: str, tool: str, path: str) -> str:
        return call_digest(asker, "files", tool, str(self.definitions[tool]), {"path": path})

    def one(self, number: int) -> Told:
        """The newest are of most interest."""
        return self.told[-1 - number % len(self.told)]

    def counted(self) -> int:
        self.number += 1
        return self.number

    @rule(asker=askers, tool=tools, path=paths, terms=terms)
    def put(self, asker: str, tool: str, path: str, terms: Terms) -> None:
        bound = self.digest(asker, tool, path)
        present = [each for each in self.told if each.digest == bound and each.is_live]
        for each in present:
            each.over = self.at >= each.until
        id = new_request_id(self.at, self.counted().to_bytes(10))
        until = self.at + timedelta(minutes=terms.lasting)
        named = (id, ApprovalKind.CONFIRM, asker, "files", tool, bound, "")
        new = ApprovalRequest(*named, NOTHING, self.at, until, quorum=terms.quorum, own=terms.own)
        kept = now(self.asks.open(new))
        live = [each for each in present if each.is_live]
        assert kept.id == (live[0].id if live else id)
        if not live:
            self.told.append(Told(id, asker, bound, terms.own, terms.quorum, until))

    @precondition(lambda self: self.told)
    @rule(
        number=which,
        by=st.sampled_from(PARTIES),
        verdict=st.sampled_from([*ApprovalDecision] + [ApprovalDecision.ACCEPT] * 4),
    )
    def answer(self, number: int, by: str, verdict: ApprovalDecision) -> None:
        self.say(self.one(number), by, verdict)

    def say(self, told: Told, by: str, verdict: ApprovalDecision) -> None:
        ask = self.kept(told)
        kind = PrincipalKind(by.partition(":")[0])
        refused = answer_refusal_reason(ask, Actor(by, kind), may_answer=True, may_answer_own=True)
        if kind is PrincipalKind.AGENT:
            assert refused == "only a person can answer this"
            return
        word = ApprovalAnswer(by, verdict, self.at)
        if by == told.asker and not told.own:
            assert refused is not None
            with pytest.raises(MalformedMessage):
                now(self.asks.answer(told.id, word, self.at + LASTS))
            return
        assert refused is None
        is_first = told.said.get(by, ApprovalDecision.DEFER) is ApprovalDecision.DEFER
        repeats = by in told.said and verdict is ApprovalDecision.DEFER
        is_heard = told.can_be_answered(self.at) and is_first and not repeats
        heard = now(self.asks.answer(told.id, word, self.at + LASTS))
        assert (heard is not None) == is_heard
        if is_heard:
            self.hear(told, by, verdict)

    @rule(asker=askers, tool=tools, path=paths, meanwhile=st.sampled_from([0, 0, 0, 9, 10]))
    def ask_and_agree(self, asker: str, tool: str, path: str, meanwhile: int) -> None:
        """All say yes who can, and somebody calls; chance alone seldom leads that far."""
        bound = self.digest(asker, tool, path)
        self.put(asker, tool, path, Terms(1 + meanwhile % 2, own=meanwhile > 0))
        told = next(each for each in self.told if each.digest == bound and each.is_live)
        for by in (ANA, BEA, CEM):
            self.say(told, by, ApprovalDecision.ACCEPT)
        self.at += timedelta(minutes=meanwhile)
        self.try_to_do(told, executors=3, leaves=True)

    def hear(self, told: Told, by: str, verdict: ApprovalDecision) -> None:
        told.said[by] = verdict
        yes = sum(each is ApprovalDecision.ACCEPT for each in told.said.values())
        if verdict in (ApprovalDecision.DECLINE, ApprovalDecision.CANCEL):
            told.over = True
        elif yes >= told.quorum:
            told.accepted, told.until = True, self.at + LASTS

    @precondition(lambda self: self.told)
    @rule(number=which, executors=st.integers(1, 3), leaves=st.booleans())
    def execute(self, number: int, executors: int, leaves: bool) -> None:
        self.try_to_do(self.one(number), executors, leaves=leaves)

    def try_to_do(self, told: Told, executors: int, *, leaves: bool) -> None:
        """Some try at once to do what was asked about; who has the answer looks at the tool."""
        expected = told.can_be_used(self.at)
        calls = [f"call-{self.counted()}" for _ in range(executors)]
        used = [now(self.asks.consume(told.id, call, self.at)) for call in calls]
        assert [each is not None for each in used] == [expected] + [False] * (executors - 1)
        if expected:
            told.call = calls[0]
            ask = self.kept(told)
            if leaves and told.digest in self.possible(ask):
                told.executions += 1

    def possible(self, ask: ApprovalRequest) -> set[str]:
        """What a call of this tool by this asker could be bound to, as the tool is now."""
        return {self.digest(ask.asker, ask.tool, path) for path in ("/a", "/b")}

    @precondition(lambda self: self.told)
    @rule(number=which, by_another=st.booleans())
    def give_back(self, number: int, by_another: bool) -> None:
        """A call that never left gives back what it used; nobody else can."""
        told = self.one(number)
        if told.executions:
            return
        call = "call-0" if by_another else told.call
        taken = any(
            each.digest == told.digest and each.is_live for each in self.told if each is not told
        )
        expected = bool(told.call) and not by_another and not taken
        assert (now(self.asks.release(told.id, call)) is not None) == expected
        if expected:
            told.call = ""

    @precondition(lambda self: self.told)
    @rule(number=which, state=st.sampled_from(ApprovalState))
    def end(self, number: int, state: ApprovalState) -> None:
        told = self.one(number)
        expected = told.is_live and (
            state in (ApprovalState.WITHDRAWN, ApprovalState.EXPIRED)
            or (state is ApprovalState.CANCELLED and not told.accepted)
        )
        assert (now(self.asks.end(told.id, state, self.at)) is not None) == expected
        told.over |= expected

    @rule(passed=minutes, swept=st.booleans())
    def wait(self, passed: int, swept: bool) -> None:
        self.at += timedelta(minutes=passed)
        if swept:
            late = {each.id for each in self.told if each.is_live and self.at >= each.until}
            assert {ask.id for ask in now(self.asks.expire(self.at))} == late
            for each in self.told:
                each.over |= each.id in late

    @rule(tool=st.sampled_from(TOOLS), to=st.integers(1, 2))
    def drift(self, tool: str, to: int) -> None:
        """A server describes its tool in another way, or again in the way it did."""
        self.definitions[tool] = to

    def kept(self, told: Told) -> ApprovalRequest:
        found = now(self.asks.get(told.id))
        assert found is not None
        return found

    @invariant()
    def an_approval_is_executed_once(self) -> None:
        assert all(each.executions <= 1 for each in self.told)

    @invariant()
    def nothing_was_done_without_people_who_said_yes(self) -> None:
        for each in self.told:
            if each.executions:
                ask = self.kept(each)
                yes = {word.by for word in ask.answers if word.verdict is ApprovalDecision.ACCEPT}
                assert (ask.state, ask.call) == (ApprovalState.CONSUMED, each.call)
                assert len(yes) >= ask.quorum
                assert ask.own or ask.asker not in yes
                assert all(by.startswith("person:") for by in yes)
                assert ask.ended_at is not None
                assert ask.ended_at < ask.expires_at

    @invariant()
    def one_question_is_live_for_one_thing(self) -> None:
        live = [ask.digest for ask in now(self.asks.page(LIVE_STATES))]
        assert len(live) == len(set(live))
        assert sorted(live) == sorted(each.digest for each in self.told if each.is_live)


@pytest.mark.timeout(180)
def test_asks_do_what_a_model_foretells() -> None:
    bounds = settings(max_examples=at_length(60, 15), stateful_step_count=40, deadline=None)
    run_state_machine_as_test(Inbox, settings=bounds)


class NaiveAsks(SqlAsks):
    """Forgets that what was used is used up."""

    @override
    async def consume(
        self, id: str, call: str, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        used, ask = await super().consume(id, call, at), await self.get(id)
        return ask if ask is not None and ask.state is ApprovalState.CONSUMED else used


class NaiveInbox(Inbox):
    def __init__(self) -> None:
        super().__init__()
        database, product = inline_parts()
        self.asks = NaiveAsks(database, SqlWorkQueue(database, product, NOTICE_JOBS))


def test_the_model_finds_out_who_uses_an_answer_twice() -> None:
    bounds = settings(
        max_examples=at_length(60, 15),
        # That it is found is enough: nobody reads the shortest way to it.
        phases=[Phase.generate],
        stateful_step_count=40,
        deadline=None,
        database=None,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(NaiveInbox, settings=bounds)


NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
ASK = ApprovalRequest(
    "0a", ApprovalKind.CONFIRM, "agent:ci", "files", "delete", "d1", "may it?", {}, NOW, LATER
)
YES = ApprovalAnswer("person:ana@example.org", ApprovalDecision.ACCEPT, NOW)


async def test_each_step_is_told_by_the_id_of_the_ask() -> None:
    told: list[tuple[RecordKind, list[str]]] = []
    asks = inline_records(lambda what, whose: told.append((what, list(whose)))).approval_requests
    await asks.open(ASK)
    await asks.answer("0a", YES, LATER)
    assert await asks.answer("0a", YES, LATER) is None
    await asks.consume("0a", "call-1", NOW)
    assert await asks.consume("0a", "call-2", NOW) is None
    assert told == [(RecordKind.ASKS, ["0a"])] * 3
