"""How far live servers may reach, as the settings and people say."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts
from comity.kernel.live.elevating import Elevating
from comity.kernel.live.scopes import OnlyDenials, Scopes
from comity.surfaces.features_api import FeaturesApi
from comity.wire.features import ELEVATE


@asynccontextmanager
async def join_scopes(live: LiveParts) -> AsyncGenerator[None]:
    parts, hosting = live.parts, live.hosting
    journaling, asking = parts.journaling, parts.asking
    hosting.noting.attach(journaling.journal, journaling.redact)
    scopes = Scopes(hosting, parts.caring.live_policy, asking.holding)
    hosting.parts.bearers.append(scopes)
    asking.admission.reaching = scopes
    cluster = parts.residents.cluster
    if cluster is not None and cluster.gate is not None:
        hosting.is_elsewhere = cluster.is_elsewhere
        # Only where a server runs is known which of its feature sets are enabled.
        cluster.gate.admission.reaching = OnlyDenials(scopes)
    key = asking.holding.key
    elevating = Elevating(
        *(asking.approvals, hosting.noting, journaling.redact, key),
        channel_of=live.channel_of,
    )
    hosting.add(ELEVATE, elevating.answer)
    parts.rooms.update(FeaturesApi(hosting, parts.governance.administration).rooms)
    yield
