"""Pushes over memory, a clock that is moved by hand, and effects that do as they are told."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from msgspec import Raw

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.journal import Journal
from comity.kernel.live.hosted import Hosted, Told
from comity.kernel.live.noting import Noting
from comity.kernel.live.push_doing import Doing, Effect, Times
from comity.kernel.live.pushes import Pushes, PushOptions
from comity.ports.pushes import PushRecords
from comity.rules.backoff import Backoff
from comity.rules.pushes import Patience, Row
from comity.wire import audit
from comity.wire.errors import Unavailable
from comity.wire.features import FeatureSet, Use
from comity.wire.pushes import PUSH, Goal, KeptPush, Route

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TURN = Route(Goal.TURN, "", "ops", "agent:ops")
TIMES = Times(
    lease=30 * SECOND,
    deadline=10 * SECOND,
    patience=Patience(Backoff(SECOND, 8 * SECOND), 60 * SECOND),
)
ROWS = (
    Row("ci", "ci.builds", TURN),
    Row("ci", "ci.noise", Route(Goal.NOTHING)),
    Row("ci", "ci.told", Route(Goal.EVENTS)),
)


class Effects:
    """What was brought about, in order; each key counts once, as turns do."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.done: dict[str, str] = {}
        self.problems: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, kept: KeptPush) -> str:
        self.tried.append(kept.push.id)
        await self.gate.wait()
        if self.problems:
            raise self.problems.pop(0)
        return self.done.setdefault(kept.push.key, f"inf_{len(self.done) + 1}")


class Node:
    """One node; several can have one store."""

    def __init__(
        self,
        records: PushRecords | None = None,
        options: PushOptions | None = None,
        rows: Sequence[Row] = ROWS,
        effects: Effects | None = None,
        times: Times = TIMES,
    ) -> None:
        self.now = NOW
        self.time = 100.0
        self.effects = effects or Effects()
        self.records = records or MemoryRecords().pushes
        self.entries: list[audit.Event] = []
        journal = Journal(MemoryRecords().journal, "n", clock=lambda: self.now)
        journal.noted.append(self.entries.append)
        noting = Noting(journal)
        brought: dict[Goal, Effect] = dict.fromkeys(Goal, self.effects)
        self.doing = Doing(self.records, brought, noting, lambda: self.now, times)
        self.pushes = Pushes(rows, self.doing, noting, options, lambda: self.time)

    async def push(self, id: str, feature: str = "ci.builds", **more: Any) -> dict[str, Any]:
        said = {
            "featureSet": feature,
            "eventId": id,
            "timestamp": "2026-07-28T11:59:00Z",
            "payload": {"content": [{"type": "text", "text": f"secret words of {id}"}]},
            **more,
        }
        return dict(await self.pushes.answer(told(said, feature)))

    async def round(self) -> None:
        await self.doing.look()
        await self.doing.finish()

    def later(self, seconds: float) -> None:
        self.now += seconds * SECOND
        self.time += seconds

    @property
    def types(self) -> list[str]:
        return [each.type.removeprefix("dev.comity.") for each in self.entries]


def told(said: Any, feature: str = "ci.builds", server: str = "ci") -> Told:
    by = cast("Hosted", SimpleNamespace(server=server))
    allowed = FeatureSet(feature, "", frozenset({Use.PUSH}))
    return Told(by, PUSH, Raw(json.dumps(said).encode()), 1, allowed)


class Lately:
    """Who knows at all nodes what was there lately; or does not answer."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.is_away = False

    async def is_first(self, key: str) -> bool:
        if self.is_away:
            raise Unavailable("NATS is away")
        is_first = key not in self.keys
        self.keys.add(key)
        return is_first
