"""What is opened by the first who needs it, once, for all who wait."""

import asyncio
from collections.abc import Callable, Coroutine

from comity.wire.errors import Unavailable


class Once[Key, Thing]:
    """Things by their key: held, or being opened."""

    def __init__(self) -> None:
        self._held: dict[Key, Thing] = {}
        self._opening: dict[Key, asyncio.Task[Thing]] = {}

    async def get(self, key: Key, make: Callable[[], Coroutine[None, None, Thing]]) -> Thing:
        """The thing, opened now if nobody has opened it yet. Raises what the opening raised."""
        held = self._held.pop(key, None)
        if held is not None:
            # What was needed last stands last.
            self._held[key] = held
            return held
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(make())
            opening.add_done_callback(lambda task: self._opened(key, task))
        # Whoever waits may be cancelled; it is opened for the others all the same.
        await asyncio.wait([opening])
        if opening.cancelled():
            raise Unavailable("it was closed while it was being opened")
        return opening.result()

    def forget(self, key: Key) -> None:
        """The thing is of no use any more; the next who needs it opens another."""
        self._held.pop(key, None)

    def beyond(self, most: int, is_idle: Callable[[Thing], bool]) -> list[Thing]:
        """Let go of what is idle and longest unused where too much is held; for who closes it."""
        if len(self._held) <= most:
            return []
        idle = [key for key, thing in self._held.items() if is_idle(thing)]
        return [self._held.pop(key) for key in idle[: len(self._held) - most]]

    def take(self, is_idle: Callable[[Thing], bool]) -> list[tuple[Key, Thing]]:
        """Let go of all that is idle; for whoever closes it."""
        idle = [key for key, thing in self._held.items() if is_idle(thing)]
        return [(key, self._held.pop(key)) for key in idle]

    def clear(self) -> list[Thing]:
        """Let everything go; gives what was held, for whoever closes it."""
        held = list(self._held.values())
        self._held.clear()
        for task in self._opening.values():
            task.cancel()
        return held

    def _opened(self, key: Key, task: asyncio.Task[Thing]) -> None:
        del self._opening[key]
        # Those who waited may all be gone; a failure is then nobody's.
        if not task.cancelled() and task.exception() is None:
            self._held[key] = task.result()
