"""The operator API for models: their list, the spending of a day, and a trial prompt."""

import secrets
from collections.abc import Iterable
from datetime import date
from typing import Annotated, Final, TypedDict

from msgspec import Meta

from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery, RequestBody, RequestQuery
from comity.inference.messages import FinishReason, text_of, to_text_content
from comity.inference.model import (
    MILLION,
    Budget,
    BudgetAccount,
    ConversationStep,
    InferenceRequest,
    ModelPrompt,
    SpendRecord,
    day_of,
)
from comity.inference.service import InferenceService

TRIED_TOKENS: Final = 1_000


class SpendingQuery(RequestQuery, frozen=True):
    """The day, such as 2026-03-01. The default is today."""

    day: str = ""


class ModelTrialBody(RequestBody, frozen=True):
    """The prompt for the model."""

    text: Annotated[str, Meta(min_length=1, max_length=100_000)]


class ModelView(TypedDict):
    """A language model. Prices are for a million tokens."""

    id: str
    model: str
    vendor: str
    context_window: int
    max_output: int
    capabilities: list[str]
    price_input: float | None
    price_output: float | None
    is_default: bool
    retry_after_ms: int | None


class ModelListView(TypedDict):
    """The language models."""

    models: list[ModelView]


class UsageView(TypedDict):
    """The use of a model by a principal on a day."""

    principal: str
    feature: str | None
    model: str
    requests: int
    input_tokens: int
    output_tokens: int
    cost: float


class BudgetView(TypedDict):
    """A budget of a day, and what is spent and held of it."""

    budget: str
    feature: str
    principal: str | None
    tokens_per_day: int | None
    money_per_day: float | None
    spent_tokens: int
    spent_money: float | None
    held_tokens: int
    held_money: float | None
    raised_tokens: int
    raised_money: float | None


class SpendingView(TypedDict):
    """The spending of a day."""

    day: str
    usage: list[UsageView]
    budgets: list[BudgetView]


class ModelTrialView(TypedDict):
    """The answer of a model to a trial prompt."""

    id: str
    model: str
    text: str
    finish: FinishReason
    input_tokens: int
    output_tokens: int
    cost: float


class ModelsApi:
    """Lists models and their spending for operators, and tries a model."""

    def __init__(self, engine: InferenceService, default: str) -> None:
        self._engine = engine
        self._default = default

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        return (
            ApiRoute("GET", "/api/models", read, self._list_models, EmptyQuery),
            ApiRoute("GET", "/api/models/usage", read, self._show_spending, SpendingQuery),
            ApiRoute("POST", "/api/models/{name}/test", write, self._try_model, ModelTrialBody),
        )

    async def _list_models(self, _: ApiRequest[EmptyQuery]) -> ModelListView:
        return {"models": [self._view(name) for name in self._engine.model_slots]}

    def _view(self, name: str) -> ModelView:
        member = self._engine.model_slots[name]
        info, rest = member.model.info, self._engine.seconds_until_retry(name)
        return {
            "id": name,
            "model": info.id,
            "vendor": info.vendor,
            "context_window": info.context_window,
            "max_output": member.max_output,
            "capabilities": list(info.capabilities),
            "price_input": member.price.input,
            "price_output": member.price.output,
            "is_default": name == self._default,
            "retry_after_ms": None if rest is None else int(rest * 1000),
        }

    async def _show_spending(self, request: ApiRequest[SpendingQuery]) -> SpendingView:
        spending, written = self._engine.budget_service, request.input.day
        try:
            day = date.fromisoformat(written) if written else day_of(spending.clock())
        except ValueError:
            raise MalformedMessage("a day is written as 2026-03-01", INVALID_PARAMS) from None
        accounts = await spending.store.accounts(day)
        return {
            "day": day.isoformat(),
            "usage": [_spent_view(each) for each in await spending.store.spending_on(day)],
            "budgets": list(_budget_views(accounts, spending.budgets)),
        }

    async def _try_model(self, request: ApiRequest[ModelTrialBody]) -> ModelTrialView:
        name = request.path["name"]
        if name not in self._engine.model_slots:
            raise MalformedMessage(f"there is no model {name!r:.80}", NOTHING_HERE)
        said = ConversationStep("user", to_text_content(request.input.text))
        prompt = ModelPrompt((said,), max_tokens=TRIED_TOKENS)
        inference = f"inf_{secrets.token_hex(12)}"
        wish = InferenceRequest(prompt, request.actor.party, inference)
        reply, spent = await self._engine.ask_model(name, wish)
        return {
            "id": name,
            "model": reply.model,
            "text": text_of(reply.content),
            "finish": reply.finish,
            "input_tokens": reply.usage.input,
            "output_tokens": reply.usage.output,
            "cost": spent.money / MILLION,
        }


def _spent_view(spent: SpendRecord) -> UsageView:
    return {
        "principal": spent.party,
        "feature": spent.feature or None,
        "model": spent.model,
        "requests": spent.requests,
        "input_tokens": spent.usage.input,
        "output_tokens": spent.usage.output,
        "cost": spent.money / MILLION,
    }


def _budget_views(
    accounts: Iterable[BudgetAccount], budgets: Iterable[Budget]
) -> Iterable[BudgetView]:
    """Yield the accounts used that day, also of budgets that no longer exist."""
    by_name = {each.name: each for each in budgets}
    for account in accounts:
        name, _, party = account.account.rpartition("|")
        budget = by_name.get(name)
        yield {
            "budget": name.partition("|")[0],
            "feature": name.partition("|")[2],
            "principal": party or None,
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
