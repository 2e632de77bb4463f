"""A budget that is used up, put before people: whether more may be spent today. (design §1)

Rule 1: there is one question for an account, a day and what was allowed beyond it until then,
        whoever waits for it and on whichever node.
Rule 2: who answers raises the bound, once, by what the question said; whoever waited goes on.
Rule 3: nobody is asked again for a while who has just said no.
"""

import asyncio
import hashlib
from collections.abc import Callable
from datetime import date, datetime
from typing import Final

import msgspec

from comity.kernel.approvals import Approvals
from comity.kernel.audit_recorder import LEFT_OUT, Bound, kind_of
from comity.kernel.journal import Journal
from comity.kernel.live.spending import Short, Spending, used_up
from comity.ports.budgets import Amounts
from comity.rules.permissions import SUBJECT
from comity.rules.phrases import count_noun
from comity.wire.asks import Ask, Kind, State
from comity.wire.audit import Event, Result, Type
from comity.wire.parties import GATEWAY, Actor, PartyKind

MOST_REMEMBERED: Final = 10_000
RAISED_LOOKS: Final = 50
RAISED_PAUSE: Final = 0.1


class BudgetAsks:
    """Asks for more, and gives it where people agree."""

    def __init__(
        self, approvals: Approvals, spending: Spending, journal: Journal | None = None
    ) -> None:
        self._approvals = approvals
        self._spending = spending
        self._journal = journal
        self._declined: dict[str, datetime] = {}
        self._bound = Bound(approvals.clock)
        approvals.deeds[Kind.BUDGET] = self._act
        spending.asks = self
        spending.exceeded.append(self._note_exceeded)

    async def ask(self, short: Short) -> bool:
        approvals = self._approvals
        digest = _digest(short)
        now = approvals.clock()
        if self._declined.get(digest, now) > now:
            raise used_up(short, self._spending.clock(), "; more was declined")
        ask = await approvals.open(approvals.new(_question(short, digest)))
        until = now + approvals.options.hold
        while ask.is_open and approvals.clock() < until:
            ask = await approvals.until_other(ask, until - approvals.clock())
        if ask.state in (State.ACCEPTED, State.USED):
            await self._raised(ask)
            return await self._is_raised(short)
        if ask.is_open:
            also = f", or when somebody agrees to more: ask {ask.id}"
            raise used_up(short, self._spending.clock(), also)
        self._decline(digest)
        raise used_up(short, self._spending.clock(), "; more was declined")

    async def _is_raised(self, short: Short) -> bool:
        """Whoever has the answer raises the bound in a moment, perhaps on another node."""
        for _ in range(RAISED_LOOKS):
            accounts = await self._spending.records.accounts(short.account.day)
            now = next((each for each in accounts if each.account == short.account.account), None)
            if now is not None and now.raised != short.account.raised:
                return True
            await asyncio.sleep(RAISED_PAUSE)
        return False

    async def _act(self, ask: Ask, actor: Actor) -> None:
        if ask.state is State.ACCEPTED:
            await self._raised(ask, actor.party)

    async def _raised(self, ask: Ask, by: str = GATEWAY) -> None:
        """Raise the bound, if nobody has yet: the ask gives that to one of all who try."""
        used = await self._approvals.use(ask, f"budget-{ask.id}")
        if used is None:
            return
        about = ask.about
        more = Amounts(_number(about["raise_tokens"]), _number(about["raise_money"]))
        day = date.fromisoformat(str(about["day"]))
        await self._spending.records.raise_by(day, str(about["account"]), more)
        details: dict[str, object] = {
            "ask": ask.id,
            "account": about["account"],
            "tokens": more.tokens,
            "money": more.money / 1_000_000,
        }
        self._note(Type.BUDGET_RAISED, by, Result.SUCCESS, details)

    def _decline(self, digest: str) -> None:
        if len(self._declined) >= MOST_REMEMBERED:
            self._declined.clear()
        now = self._approvals.clock()
        self._declined[digest] = now + self._approvals.options.declined_for

    def _note_exceeded(self, short: Short) -> None:
        details: dict[str, object] = {
            "account": short.account.account,
            "wanted_tokens": short.wanted.tokens,
            "spent_tokens": short.account.spent.tokens,
            "held_tokens": short.account.held.tokens,
            "model": short.spender.model,
        }
        self._note(Type.BUDGET_EXCEEDED, short.spender.party, Result.BLOCKED, details)

    def _note(self, type: Type, by: str, result: Result, details: dict[str, object]) -> None:
        """Whoever is refused may ask as often as it likes: of the rest only the number is kept."""
        left_out = self._bound.take(f"{type} {by}")
        if left_out is None or self._journal is None or not self._journal.has_room:
            return
        if left_out:
            details[LEFT_OUT] = left_out
        kind = PartyKind.SYSTEM if by == GATEWAY else kind_of(by)
        at = self._approvals.clock()
        self._journal.note(Event(type, by, at, kind, result=result, details=details))


def _question(short: Short, digest: str) -> Callable[[str, datetime, datetime], Ask]:
    budget, account = short.budget, short.account
    tokens = _more(budget.tokens, short.wanted.tokens)
    money = _more(budget.money, short.wanted.money)
    parts = [count_noun(tokens, "token")] if tokens else []
    parts += [f"{money / 1_000_000:.2f} of money"] if money else []
    party, spent = short.spender.party, count_noun(account.spent.tokens, "token")
    message = (
        f"{party} has used up today's budget for {budget.feature} "
        f"({spent} spent). May it spend {' and '.join(parts)} more today?"
    )
    about: dict[str, object] = {
        "party": party,
        "feature": budget.feature,
        "account": account.account,
        "day": account.day.isoformat(),
        "spent_tokens": account.spent.tokens,
        "spent_money": account.spent.money / 1_000_000,
        "raise_tokens": tokens,
        "raise_money": money,
    }
    server = party.removeprefix(SUBJECT) if party.startswith(SUBJECT) else ""

    def made(id: str, at: datetime, until: datetime) -> Ask:
        return Ask(id, Kind.BUDGET, party, server, "", digest, message, about, at, until)

    return made


def _more(bound: int | None, wanted: int) -> int:
    """Half of a day's again, but at least what is wanted now."""
    return 0 if bound is None else max(bound // 2, wanted)


def _digest(short: Short) -> str:
    account = short.account
    whole = [account.account, account.day.isoformat(), *account.raised]
    return hashlib.sha256(b"budget" + msgspec.json.encode(whole)).hexdigest()


def _number(found: object) -> int:
    return found if isinstance(found, int) else 0
