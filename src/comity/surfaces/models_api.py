"""Models at /api/models: which there are, what was spent today and by whom; one can be tried."""

import secrets
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Final

from comity.kernel.live.inferring import Inference
from comity.kernel.live.parts import Inferring
from comity.ports.budgets import Account, Spent
from comity.ports.models import Prompt, Step
from comity.rules.budgets import MILLION, Budget, day_of
from comity.surfaces.asked import Asked, Room, View
from comity.wire.contents import said, text_of
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage

LONGEST_TEXT: Final = 100_000
TRIED_TOKENS: Final = 1_000


class ModelsApi:
    """What can be asked and what it costs, for those who may administer the gateway."""

    def __init__(self, engine: Inference, default: str) -> None:
        self._engine = engine
        self._default = default

    @property
    def rooms(self) -> dict[str, Room]:
        return {"models": self.models}

    async def models(self, asked: Asked) -> View:
        match asked.method, asked.place:
            case "GET", ():
                return {"models": [self._view(name) for name in self._engine.seats]}
            case "GET", ("spent",):
                return await self._spent(asked.query.get("day", ""))
            case "POST", (name, "try"):
                return await self._try(name, asked)
            case _:
                raise MalformedMessage("there is no such address under /api/models", NOTHING_HERE)

    def _view(self, name: str) -> dict[str, object]:
        seat = self._engine.seats[name]
        info, rest = seat.model.info, self._engine.circuits.left(name)
        return {
            "id": name,
            "model": info.id,
            "vendor": info.vendor,
            "context_window": info.context_window,
            "max_output": seat.max_output,
            "capabilities": list(info.capabilities),
            "price_input": seat.price.input,
            "price_output": seat.price.output,
            "is_default": name == self._default,
            "rests_ms": None if rest is None else rest // timedelta(milliseconds=1),
        }

    async def _spent(self, written: str) -> View:
        spending = self._engine.spending
        try:
            day = date.fromisoformat(written) if written else day_of(spending.clock())
        except ValueError:
            raise MalformedMessage("a day is written as 2026-03-01", INVALID_PARAMS) from None
        accounts = await spending.records.accounts(day)
        return {
            "day": day.isoformat(),
            "spent": [_spent_view(each) for each in await spending.records.spent(day)],
            "budgets": list(_budget_views(accounts, spending.budgets)),
        }

    async def _try(self, name: str, asked: Asked) -> View:
        if name not in self._engine.seats:
            raise MalformedMessage(f"there is no model {name!r:.80}", NOTHING_HERE)
        text = asked.body.get("text")
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_TEXT:
            raise MalformedMessage("say something to it, as text", INVALID_PARAMS)
        prompt = Prompt((Step("user", said(text)),), max_tokens=TRIED_TOKENS)
        inference = f"inf_{secrets.token_hex(12)}"
        wish = Inferring(prompt, asked.actor.party, inference)
        reply, spent = await self._engine.ask(name, wish)
        return {
            "id": name,
            "model": reply.model,
            "text": text_of(reply.content),
            "finish": reply.finish,
            "input_tokens": reply.usage.input,
            "output_tokens": reply.usage.output,
            "cost": spent.money / MILLION,
        }


def _spent_view(spent: Spent) -> dict[str, object]:
    return {
        "party": spent.party,
        "feature": spent.feature or None,
        "model": spent.model,
        "requests": spent.requests,
        "input_tokens": spent.usage.input,
        "output_tokens": spent.usage.output,
        "cost": spent.money / MILLION,
    }


def _budget_views(
    accounts: Iterable[Account], budgets: Iterable[Budget]
) -> Iterable[dict[str, object]]:
    """Those that were touched; of budgets that are no more, too."""
    by_name = {each.name: each for each in budgets}
    for account in accounts:
        name, _, party = account.account.rpartition("|")
        budget = by_name.get(name)
        yield {
            "budget": name.partition("|")[0],
            "feature": name.partition("|")[2],
            "party": party or None,
            "tokens_per_day": None if budget is None else budget.tokens,
            "money_per_day": _money(None if budget is None else budget.money),
            "spent_tokens": account.spent.tokens,
            "spent_money": _money(account.spent.money),
            "held_tokens": account.held.tokens,
            "held_money": _money(account.held.money),
            "raised_tokens": account.raised.tokens,
            "raised_money": _money(account.raised.money),
        }


def _money(millionths: int | None) -> float | None:
    return None if millionths is None else millionths / MILLION
