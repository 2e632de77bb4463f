"""Holds and settles the cost of requests, and asks for approval to raise budgets."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol

import msgspec

from comity.approvals.model import ApprovalDraft, ApprovalKind, ApprovalRequest, ApprovalState
from comity.approvals.service import ApprovalService, KindHandler
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import BUDGET_EXCEEDED, Unavailable
from comity.inference.messages import Content, TokenUsage
from comity.inference.model import (
    Amount,
    Budget,
    BudgetAccount,
    BudgetAmounts,
    BudgetLimit,
    BudgetStore,
    ModelPrompt,
    Price,
    SpendRecord,
    amount_of_usage,
    day_of,
    find_budgets,
    next_day_start,
)
from comity.mcp.actors import GATEWAY, Actor
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.toolkit.text import count_noun

log = logging.getLogger(__name__)

BYTES_PER_TOKEN: Final = 2
"""A low estimate, so that the held amount is rather too high than too low."""

STEP_TOKENS: Final = 16
MEDIA_TOKENS: Final = 2_000
SETTLE_TRIES: Final = 3

type Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class BudgetPayer:
    """The principal that pays, the feature set and the model."""

    party: str
    feature: str
    model: str


@dataclass(frozen=True, slots=True)
class BudgetShortfall:
    """A budget that has too little left for a request."""

    budget: Budget
    account: BudgetAccount
    wanted: Amount
    spender: BudgetPayer


class AskMore(Protocol):
    """Asks for approval to raise a budget."""

    async def request_raise(self, shortfall: BudgetShortfall) -> bool:
        """Return whether the budget was raised. Raises Unavailable if approval is still pending."""
        ...


@dataclass(slots=True)
class BudgetHold:
    """The amount that is held for one request. It is settled once."""

    spender: BudgetPayer
    day: date
    accounts: tuple[str, ...]
    amount: Amount
    is_settled: bool = field(default=False)


class BudgetService:
    """Checks and charges the budgets of requests."""

    def __init__(
        self,
        store: BudgetStore,
        budgets: Sequence[Budget] = (),
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.store = store
        self.budgets = tuple(budgets)
        self.clock = clock
        self.approvals: AskMore | None = None
        # They are called when a budget is used up.
        self.exceeded_listeners: list[Callable[[BudgetShortfall], None]] = []

    async def hold(self, payer: BudgetPayer, amount: Amount) -> BudgetHold:
        """Hold an amount for a request. Raises Unavailable if a budget is used up."""
        while True:
            day = day_of(self.clock())
            found = find_budgets(self.budgets, payer.party, payer.feature)
            by_account = {each.account(payer.party): each for each in found}
            bounds = [
                BudgetLimit(name, each.tokens, each.money) for name, each in by_account.items()
            ]
            short = None
            if bounds:
                short = await self.store.hold(day, bounds, BudgetAmounts(*amount))
            if short is None:
                return BudgetHold(payer, day, tuple(by_account), amount)
            await self._more(BudgetShortfall(by_account[short.account], short, amount, payer))

    async def settle(self, hold: BudgetHold, usage: TokenUsage, price: Price) -> Amount:
        """Charge the actual cost and return it.

        If the store is unavailable, the held amount stays. It is never lower than the cost.
        """
        amount = amount_of_usage(usage, price)
        if hold.is_settled:
            return amount
        hold.is_settled = True
        by = hold.spender
        used = SpendRecord(hold.day, by.party, by.feature, by.model, usage, amount.money, 1)
        for left in reversed(range(SETTLE_TRIES)):
            try:
                await self.store.settle(hold.day, hold.accounts, BudgetAmounts(*hold.amount), used)
                break
            except Unavailable as error:
                log.warning("The spending of %s could not be stored: %s", by.party, error)
                if left:
                    await asyncio.sleep(0.2)
        return amount

    async def _more(self, shortfall: BudgetShortfall) -> None:
        for hear in self.exceeded_listeners:
            hear(shortfall)
        asks = (
            self.approvals
            if shortfall.budget.on_exceeded == "ask" and _can_help(shortfall)
            else None
        )
        if asks is None or not await asks.request_raise(shortfall):
            raise budget_used_up_error(shortfall, self.clock())


def budget_used_up_error(shortfall: BudgetShortfall, now: datetime, also: str = "") -> Unavailable:
    """Return the error for a budget that is used up, with the time of its renewal."""
    again = next_day_start(shortfall.account.day)
    reason = (
        f"the budget of {shortfall.spender.party} for {shortfall.budget.feature} "
        "is used up for today; "
        f"it resets at {again:%Y-%m-%dT%H:%MZ}{also}"
    )
    return Unavailable(reason, BUDGET_EXCEEDED, max(again - now, timedelta(seconds=1)))


def _can_help(shortfall: BudgetShortfall) -> bool:
    """Whether a raise can be requested. A budget of zero is a prohibition."""
    return shortfall.budget.tokens != 0 and shortfall.budget.money != 0


def most_tokens(prompt: ModelPrompt) -> int:
    """Return the maximum number of tokens of a prompt, estimated from its length."""
    size = _size(prompt.system)
    media = 0
    for step in prompt.steps:
        contents = [step.content, *(each.content for each in step.results)]
        size += sum(_size(each) for each in contents) + STEP_TOKENS * BYTES_PER_TOKEN
        size += sum(len(str(each.arguments).encode()) + len(each.name) for each in step.uses)
        media += sum(bool(block.data) for each in contents for block in each)
    for tool in prompt.tools:
        size += len(str(tool.schema).encode()) + len(tool.description.encode()) + len(tool.name)
        size += STEP_TOKENS * BYTES_PER_TOKEN
    return size // BYTES_PER_TOKEN + STEP_TOKENS + media * MEDIA_TOKENS


def max_cost_of(prompt: ModelPrompt, price: Price) -> Amount:
    """Return the maximum cost of a request."""
    return amount_of_usage(TokenUsage(most_tokens(prompt), prompt.max_tokens), price)


def _size(content: Content) -> int:
    return sum(len(block.text.encode()) + len(block.uri) for block in content)


RAISED_LOOKS: Final = 50
RAISED_PAUSE: Final = 0.1


class BudgetApprovals:
    """Requests approval to raise budgets that are used up, and raises them."""

    def __init__(
        self,
        approvals: ApprovalService,
        budget_service: BudgetService,
        audit_log: AuditLog | None = None,
    ) -> None:
        self._approvals = approvals
        self._budget_service = budget_service
        self._audit_log = audit_log
        approvals.add_handler(ApprovalKind.BUDGET, KindHandler(on_answer=self._act))
        budget_service.approvals = self
        budget_service.exceeded_listeners.append(self._record_exceeded)

    async def request_raise(self, shortfall: BudgetShortfall) -> bool:
        approvals = self._approvals
        ask = await approvals.request(_draft(shortfall))
        ask = await approvals.wait(ask, approvals.settings.client_wait)
        if ask.state in (ApprovalState.APPROVED, ApprovalState.CONSUMED):
            await self._raise_limit(ask)
            return await self._wait_until_raised(shortfall)
        if ask.is_open:
            also = f", or when a person approves more: request {ask.id}"
            raise budget_used_up_error(shortfall, self._budget_service.clock(), also)
        raise budget_used_up_error(shortfall, self._budget_service.clock(), "; more was declined")

    async def _wait_until_raised(self, shortfall: BudgetShortfall) -> bool:
        """Wait until the limit is raised, which another node may do."""
        for _ in range(RAISED_LOOKS):
            accounts = await self._budget_service.store.accounts(shortfall.account.day)
            now = next(
                (each for each in accounts if each.account == shortfall.account.account), None
            )
            if now is not None and now.raised != shortfall.account.raised:
                return True
            await asyncio.sleep(RAISED_PAUSE)
        return False

    async def _act(self, approval_request: ApprovalRequest, actor: Actor) -> None:
        if approval_request.state is ApprovalState.APPROVED:
            await self._raise_limit(approval_request, actor.party)

    async def _raise_limit(self, approval_request: ApprovalRequest, by: str = GATEWAY) -> None:
        """Raise the limit. Only the node that consumes the approval does it."""
        used = await self._approvals.consume(approval_request, f"budget-{approval_request.id}")
        if used is None:
            return
        about = approval_request.about
        more = BudgetAmounts(_number(about["raise_tokens"]), _number(about["raise_money"]))
        day = date.fromisoformat(str(about["day"]))
        await self._budget_service.store.raise_by(day, str(about["account"]), more)
        details: dict[str, object] = {
            "approval": approval_request.id,
            "account": about["account"],
            "tokens": more.tokens,
            "money": more.money / 1_000_000,
        }
        self._record(AuditType.BUDGET_RAISED, by, AuditResult.SUCCESS, details)

    def _record_exceeded(self, shortfall: BudgetShortfall) -> None:
        details: dict[str, object] = {
            "account": shortfall.account.account,
            "wanted_tokens": shortfall.wanted.tokens,
            "spent_tokens": shortfall.account.spent.tokens,
            "held_tokens": shortfall.account.held.tokens,
            "model": shortfall.spender.model,
        }
        self._record(
            AuditType.BUDGET_EXCEEDED, shortfall.spender.party, AuditResult.BLOCKED, details
        )

    def _record(
        self, type: AuditType, by: str, result: AuditResult, details: dict[str, object]
    ) -> None:
        if self._audit_log is not None:
            self._audit_log.record(
                type, by, result=result, details=details, rate_key=by, if_room=True
            )


def _draft(shortfall: BudgetShortfall) -> ApprovalDraft:
    budget, account = shortfall.budget, shortfall.account
    tokens = _more(budget.tokens, shortfall.wanted.tokens)
    money = _more(budget.money, shortfall.wanted.money)
    parts = [count_noun(tokens, "token")] if tokens else []
    parts += [f"{money / 1_000_000:.2f} of money"] if money else []
    party, spent = shortfall.spender.party, count_noun(account.spent.tokens, "token")
    message = (
        f"{party} has used up today's budget for {budget.feature} "
        f"({spent} spent). May it spend {' and '.join(parts)} more today?"
    )
    about: dict[str, object] = {
        "principal": party,
        "feature": budget.feature,
        "account": account.account,
        "day": account.day.isoformat(),
        "spent_tokens": account.spent.tokens,
        "spent_money": account.spent.money / 1_000_000,
        "raise_tokens": tokens,
        "raise_money": money,
    }
    return ApprovalDraft(
        kind=ApprovalKind.BUDGET,
        asker=party,
        server=party.removeprefix(SERVER_SUBJECT_PREFIX)
        if party.startswith(SERVER_SUBJECT_PREFIX)
        else "",
        digest=_digest(shortfall),
        message=message,
        about=about,
    )


def _more(bound: int | None, wanted: int) -> int:
    """Return half of the daily limit, but at least the amount that is needed now."""
    return 0 if bound is None else max(bound // 2, wanted)


def _digest(shortfall: BudgetShortfall) -> str:
    account = shortfall.account
    whole = [account.account, account.day.isoformat(), *account.raised]
    return hashlib.sha256(b"budget" + msgspec.json.encode(whole)).hexdigest()


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
