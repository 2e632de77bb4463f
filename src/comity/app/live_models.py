"""Models, as the settings name them, and who may ask them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts
from comity.app.model_making import make_seats, plan_of
from comity.kernel.live.inferring import Inference
from comity.kernel.live.spending import Spending


@asynccontextmanager
async def join_models(live: LiveParts) -> AsyncGenerator[None]:
    settings = live.settings
    # Their packages take seconds to load.
    seats = await asyncio.to_thread(make_seats, settings) if settings.models else {}
    spending = Spending(live.parts.snapshot.records.budgets, settings.budgets)
    journal = live.parts.journaling.journal
    engine = Inference(seats, plan_of(settings), spending, journal)
    engine.deadline = settings.inference_deadline
    live.engine = engine
    try:
        yield
    finally:
        await engine.close()
