"""Builds the inference service, its models and its budgets, for the composition root."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from comity.app.settings import Settings
from comity.approvals.service import ApprovalService
from comity.audit.log import AuditLog
from comity.config.secret_files import read_secret
from comity.errors import Misconfigured, Unavailable
from comity.inference.budgets import BudgetApprovals, BudgetService
from comity.inference.model import BudgetStore, ModelSpec, Price, day_of
from comity.inference.providers.registry import make_model, price_of
from comity.inference.service import InferenceService, ModelSlot, RoutingConfig
from comity.inference.settings import ModelSettings, missing_models
from comity.servers.wiring import proxies_of
from comity.telemetry.tracing import Tracer

log = logging.getLogger(__name__)

SPENDING_RETENTION: Final = timedelta(days=400)
_PRUNE_SECONDS: Final = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class InferenceComponents:
    """The inference service, and the model that answers requests without a route."""

    engine: InferenceService
    default: str


@asynccontextmanager
async def open_inference(
    settings: Settings,
    budgets: BudgetStore,
    approvals: ApprovalService,
    audit_log: AuditLog,
    tracer: Tracer | None = None,
) -> AsyncGenerator[InferenceComponents]:
    """Run the configured models until the context exits. Raises Misconfigured."""
    # The vendors' packages take seconds to import, which would block the event loop.
    seats = await asyncio.to_thread(make_seats, settings) if settings.models else {}
    spending = BudgetService(budgets, settings.budgets)
    BudgetApprovals(approvals, spending, audit_log)
    plan = plan_of(settings)
    deadline = settings.inference.timeout
    engine = InferenceService(seats, plan, spending, audit_log, deadline=deadline, tracer=tracer)
    pruning = asyncio.ensure_future(_prune_spending(spending))
    try:
        yield InferenceComponents(engine, plan.default)
    finally:
        pruning.cancel()
        await engine.close()


async def _prune_spending(budget_service: BudgetService) -> None:
    """Delete old spending periodically. The audit log still has it."""
    while True:
        try:
            await budget_service.store.prune(day_of(budget_service.clock()) - SPENDING_RETENTION)
        except Unavailable as error:
            log.debug("old days of spending are not forgotten yet: %s", error)
        await asyncio.sleep(_PRUNE_SECONDS)


def make_seats(settings: Settings) -> dict[str, ModelSlot]:
    """Build all models without connecting to them. Raises Misconfigured."""
    check_names(settings)
    return {each.id: _model_slot(each, settings) for each in settings.models}


def plan_of(settings: Settings) -> RoutingConfig:
    """Return the routing configuration. A single model is the default."""
    ids = [each.id for each in settings.models]
    default = settings.inference.default or (ids[0] if len(ids) == 1 else "")
    return RoutingConfig(settings.inference.routes, default, settings.inference.fallbacks)


def check_names(settings: Settings) -> None:
    """Check that every named model exists. Raises Misconfigured."""
    for key, name in missing_models(settings.models, settings.inference):
        raise Misconfigured(f"inference.{key}: there is no model {name!r} in [[models]]")


def spec_of(model: ModelSettings, settings: Settings) -> ModelSpec:
    return ModelSpec(
        model.id,
        model.api,
        model.model,
        model.url,
        _key(model),
        model.context_window,
        model.max_output,
        model.capabilities,
        model.vendor,
        settings.inference.timeout,
        model.options,
        _proxy(model, settings),
    )


def _proxy(model: ModelSettings, settings: Settings) -> str:
    """Return the proxy for a model.

    Without a URL the vendor's SDK knows the address, so no exemption by host name applies.
    """
    parts = urlsplit(model.url or "https://vendor.invalid")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return proxies_of(settings).proxy_for(parts.scheme, parts.hostname or "", port)


def _model_slot(model: ModelSettings, settings: Settings) -> ModelSlot:
    spec = spec_of(model, settings)
    price = price_of(spec, Price(model.price_input, model.price_output))
    return ModelSlot(make_model(spec), price, model.max_output)


def _key(model: ModelSettings) -> str:
    if model.key_env:
        found = os.environ.get(model.key_env, "")
        if not found:
            reason = f"the variable {model.key_env} is not set; set it to the key of this model"
            raise Misconfigured(f"model {model.id!r}: {reason}")
        return found.strip()
    if not model.key_file:
        return ""
    key = read_secret(model.key_file, f"model {model.id!r}: key_file")
    if not key or not key.isascii():
        raise Misconfigured(f"model {model.id!r}: its key_file holds no key; put it there, alone")
    return key.decode("ascii")
