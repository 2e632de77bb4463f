"""Models, as the settings name them, and who may ask them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts
from comity.app.model_making import make_seats, plan_of
from comity.app.questioning import AskedBack
from comity.kernel.live.inferring import Inference
from comity.kernel.live.requests import Requests
from comity.kernel.live.sampling import Sampling
from comity.kernel.live.spending import Spending
from comity.kernel.live.spending_asks import BudgetAsks
from comity.surfaces.models_api import ModelsApi


@asynccontextmanager
async def join_models(live: LiveParts) -> AsyncGenerator[None]:
    settings, parts = live.settings, live.parts
    # Their packages take seconds to load.
    seats = await asyncio.to_thread(make_seats, settings) if settings.models else {}
    journal = parts.journaling.journal
    spending = Spending(parts.snapshot.records.budgets, settings.budgets)
    BudgetAsks(parts.asking.approvals, spending, journal)
    plan = plan_of(settings)
    engine = Inference(seats, plan, spending, journal)
    engine.deadline = settings.inference_deadline
    live.engine = engine
    Requests(engine, live.hooks).join(live.hosting)
    parts.rooms.update(ModelsApi(engine, plan.default).rooms)
    sampling = _join_sampling(live, engine)
    try:
        yield
    finally:
        if sampling is not None:
            sampling.stop()
        await engine.close()


def _join_sampling(live: LiveParts, engine: Inference) -> Sampling | None:
    """Have clients stood in for that have no model."""
    questions = live.parts.caring.questions
    if not isinstance(questions, AskedBack):
        return None
    questions.sampling = Sampling(
        engine,
        live.parts.asking.approvals,
        questions.inquiries,
        live.settings.inference_sampling,
        live.parts.journaling.redact,
    )
    return questions.sampling
