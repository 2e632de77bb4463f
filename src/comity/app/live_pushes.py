"""What servers and webhooks push, and where it goes to, as the settings say."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.adapters.buses import open_firsts
from comity.adapters.secret_files import read_secret
from comity.app.live_parts import LiveParts
from comity.config import Settings
from comity.kernel.live.push_doing import Doing, Times
from comity.kernel.live.push_effects import effects
from comity.kernel.live.push_hooks import Hook, InboundHooks
from comity.kernel.live.pushes import Pushes, PushOptions
from comity.rules.pushes import HookRow
from comity.rules.rates import Rate
from comity.surfaces.hooks_door import HooksDoor
from comity.surfaces.pushes_api import PushesApi
from comity.surfaces.reception import HOOKS
from comity.wire.errors import Misconfigured
from comity.wire.features import Use
from comity.wire.inbound_hooks import LEAST_SECRET, HookKind, Signing
from comity.wire.pushes import PUSH

MOST_SECRETS = 10


@asynccontextmanager
async def join_pushes(live: LiveParts) -> AsyncGenerator[None]:
    """Take pushes in, and do what follows from those of all nodes, until the way out."""
    hooks = [_hook(row) for row in live.settings.hook_rows]
    pushes = make_pushes(live)
    live.hosting.add(PUSH, pushes.answer, Use.PUSH)
    if hooks:
        live.parts.gateway.open({HOOKS: HooksDoor(InboundHooks(hooks, pushes))})
    doing = pushes.doing
    live.parts.rooms.update(PushesApi(doing.records, doing.clock, doing.stirred.set).rooms)
    working = asyncio.ensure_future(doing.run())
    try:
        yield
    finally:
        live.parts.gateway.close([HOOKS])
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await doing.stop()


def make_pushes(live: LiveParts) -> Pushes:
    settings, parts = live.settings, live.parts
    noting, clock = live.hosting.noting, parts.journaling.journal.clock
    # Who takes turns is joined by somebody else, perhaps later.
    told = (parts.eventing.events, parts.conversing.topics)
    brought = effects(*told, lambda: live.turns, settings.turn_party)
    times = Times(remembered=settings.push_remembered)
    doing = Doing(parts.snapshot.records.pushes, brought, noting, clock, times)
    pushes = Pushes(settings.push_rows, doing, noting, _options(settings))
    cluster = parts.residents.cluster
    if cluster is not None:
        pushes.firsts = open_firsts(cluster.bus)
    return pushes


def _options(settings: Settings) -> PushOptions:
    return PushOptions(
        _rate(settings.push_rate),
        _rate(settings.push_set_rate),
        settings.push_bytes,
        settings.push_waiting,
        is_lasting=bool(settings.store_url),
    )


def _rate(in_a_minute: int) -> Rate | None:
    return Rate(in_a_minute, 60.0, in_a_minute) if in_a_minute else None


def _hook(row: HookRow) -> Hook:
    """A webhook with its secrets. Raises Misconfigured where these cannot be had."""
    written = read_secret(row.secret_file, f"the secret_file of hook {row.name!r}")
    secrets = tuple(each.strip() for each in written.splitlines() if each.strip())
    if not 0 < len(secrets) <= MOST_SECRETS or min(map(len, secrets)) < LEAST_SECRET:
        raise Misconfigured(
            f"the secret_file of hook {row.name!r} must hold 1 to {MOST_SECRETS} secrets, each in "
            f"a line of its own, with {LEAST_SECRET} characters at least"
        )
    header = row.header.lower() if row.kind is HookKind.PLAIN else ""
    signing = Signing(row.kind, secrets, header, row.algorithm)
    return Hook(row.name, signing, row.route, row.id, row.content)
