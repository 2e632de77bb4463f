"""Models, as the settings name them, and who may ask them."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from comity.app.live_parts import LiveParts
from comity.app.model_making import make_seats, plan_of
from comity.app.questioning import AskedBack
from comity.kernel.live.inferring import Inference
from comity.kernel.live.requests import Requests
from comity.kernel.live.sampling import Sampling
from comity.kernel.live.spending import Spending
from comity.kernel.live.spending_asks import BudgetAsks
from comity.rules.budgets import day_of
from comity.surfaces.models_api import ModelsApi
from comity.wire.errors import Unavailable

log = logging.getLogger(__name__)

KEPT: Final = timedelta(days=400)
_LOOK_SECONDS: Final = 6 * 3600.0


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
    forgetting = asyncio.ensure_future(_forget(spending))
    try:
        yield
    finally:
        forgetting.cancel()
        if sampling is not None:
            sampling.stop()
        await engine.close()


async def _forget(spending: Spending) -> None:
    """What was spent long ago is in the journal, and needed for nothing else."""
    while True:
        try:
            await spending.records.prune(day_of(spending.clock()) - KEPT)
        except Unavailable as error:
            log.debug("old days of spending are not forgotten yet: %s", error)
        await asyncio.sleep(_LOOK_SECONDS)


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
