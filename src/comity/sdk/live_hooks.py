"""The hooks of a live server: what it adds before a model answers, and does afterwards. (MCPL §10)

Rule 1: an answer bears one feature set: the first enabled one that has something to say. (§6.5)
Rule 2: what a hook does wrong costs its host nothing: it contributes nothing. (§10.6)
Rule 3: who only listens afterwards is waited for by nobody.
Rule 4: who was to look at words and failed says so: its host decides whether they go out. (§13.3)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from mcp import MCPError

from comity.sdk.live_features import Feature
from comity.sdk.live_hosts import Host
from comity.sdk.live_inference import HOOK, Hooked
from comity.sdk.live_words import Rewrite, Turn, injected, turn_in
from comity.wire.errors import FEATURE_NOT_ENABLED, INTERNAL_ERROR, Misconfigured

log = logging.getLogger(__name__)

type Start = Callable[[Coroutine[Any, Any, None]], None]


class Hooks:
    """Those of all feature sets of a server."""

    def __init__(self, name: str, sets: Mapping[str, Feature], start: Start) -> None:
        self._name = name
        self._sets = sets
        self._start = start

    @property
    def is_waited_for(self) -> bool:
        """Whether any of them may change what was said. (§10.5)"""
        return any(blocking for each in self._sets.values() for _, blocking in each.after)

    def afterwards(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Do something once the hook amid which this is called is over; a model may be asked."""
        hook = HOOK.get()

        async def run() -> None:
            if hook is not None:
                await hook.over.wait()
            HOOK.set(None)
            await function(*args)

        self._start(run())

    async def before(self, host: Host, params: Mapping[str, Any]) -> dict[str, Any]:
        turn = turn_in(params)
        enabled = self._enabled(host, [each for each in self._sets.values() if each.before])
        async with host.hooked():
            for each in enabled:
                for hook in each.before:
                    found = self._injected(each, await self._heard(each.name, hook, turn))
                    if found:
                        return {"featureSet": each.name, "contextInjections": found}
        return {"featureSet": enabled[0].name, "contextInjections": []}

    async def after(
        self, host: Host, params: Mapping[str, Any], *, waited_for: bool
    ) -> dict[str, Any]:
        turn = turn_in(params)
        enabled = self._enabled(host, [each for each in self._sets.values() if each.after])
        said: dict[str, Any] | None = None
        async with host.hooked():
            for each in enabled:
                for hook, blocking in each.after:
                    if not waited_for:
                        await self._heard(each.name, hook, turn)
                    elif not blocking:
                        self.afterwards(self._heard, each.name, hook, turn)
                    elif found := await self._looked(each.name, hook, turn):
                        # The next one looks at what this one left.
                        said, turn = found, replace(turn, answer=found["modifiedResponse"])
        return said or {"featureSet": enabled[0].name}

    def _enabled(self, host: Host, sets: list[Feature]) -> list[Feature]:
        return [each for each in sets if host.decided.allows(each.name)] or _refuse(sets)

    def _injected(self, feature: Feature, said: object) -> list[dict[str, Any]]:
        try:
            return injected(said, self._name)
        except Misconfigured:
            log.exception("what a hook of %r gave cannot be said", feature.name)
            return []

    async def _looked(
        self, feature: str, hook: Callable[[Turn], Awaitable[object]], turn: Turn
    ) -> dict[str, Any] | None:
        """What is to be said instead, if anything. Raises MCPError where it failed."""
        problems: list[Exception] = []
        found = await self._heard(feature, hook, turn, problems)
        if problems or not (found is None or isinstance(found, str | Rewrite)):
            raise MCPError(INTERNAL_ERROR.code, "the hook failed", {"featureSet": feature})
        return None if found is None else _rewritten(feature, found)

    async def _heard(
        self,
        feature: str,
        hook: Callable[[Turn], Awaitable[object]],
        turn: Turn,
        problems: list[Exception] | None = None,
    ) -> object:
        hooked = Hooked(asyncio.Event())
        before = HOOK.set(hooked)
        try:
            return await hook(turn)
        except Exception as problem:
            log.exception("a hook of %r failed", feature)
            if problems is not None:
                problems.append(problem)
            return None
        finally:
            hooked.over.set()
            HOOK.reset(before)


def _refuse(sets: list[Feature]) -> NoReturn:
    named = sets[0].name if sets else ""
    data = {"featureSet": named, "canEnable": bool(sets)}
    raise MCPError(FEATURE_NOT_ENABLED.code, "Feature set not enabled", data)


def _rewritten(feature: str, said: str | Rewrite) -> dict[str, Any]:
    made = Rewrite(said) if isinstance(said, str) else said
    told: dict[str, Any] = {"featureSet": feature, "modifiedResponse": made.text}
    return {**told, "metadata": dict(made.metadata)} if made.metadata else told
