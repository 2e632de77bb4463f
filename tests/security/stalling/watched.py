"""`comity` with a watch on its event loop: python -m tests.security.stalling.watched REPORT serve …

The watch ticks on the loop itself. Between two ticks it takes the processor's time, which another
program on the machine cannot lengthen, and how much the JSON decoders built and read. On SIGUSR1
the largest of each is written to REPORT, and the watch begins anew.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

TICK_SECONDS = 0.002


class Work:
    """What decoders did since the last tick."""

    built = 0
    read = 0


def built_in(found: object) -> int:
    """How many values a decoder has made; what stays raw is one."""
    count, left = 0, [found]
    while left:
        each = left.pop()
        count += 1
        if isinstance(each, dict):
            left += cast("dict[str, object]", each).values()
        elif isinstance(each, list | tuple):
            left += cast("list[object]", each)
        elif isinstance(each, msgspec.Struct):
            left += (getattr(each, name) for name in each.__struct_fields__)
    return count


def counted(decode: Callable[..., Any]) -> Callable[..., Any]:
    """The same decoder, whose work is counted."""

    def decode_and_count(data: Any, *more: Any, **named: Any) -> Any:
        Work.read += len(data)
        found = decode(data, *more, **named)
        Work.built += built_in(found)
        return found

    return decode_and_count


class CountingDecoder:
    """A decoder of msgspec whose work is counted."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.decode = counted(_Decoder(*given, **named).decode)

    def __class_getitem__(cls, _: object) -> type["CountingDecoder"]:
        return cls


_Decoder: Any = msgspec.json.Decoder


class Watch:
    """The largest of each measure between two ticks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Path) -> None:
        self._loop = loop
        self._report = report
        self._reports = 0
        self._begin()
        loop.add_signal_handler(signal.SIGUSR1, self._tell)
        self._tick()

    def _begin(self) -> None:
        self._worst = {"held": 0.0, "built": 0, "read": 0}
        self._wall, self._cpu = time.perf_counter(), time.thread_time()
        Work.built = Work.read = 0

    def _look(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        held = min(wall - self._wall, cpu - self._cpu)
        for name, seen in (("held", held), ("built", Work.built), ("read", Work.read)):
            self._worst[name] = max(self._worst[name], seen)
        self._wall, self._cpu = wall, cpu
        Work.built = Work.read = 0

    def _tick(self) -> None:
        self._look()
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _tell(self) -> None:
        self._look()
        self._reports += 1
        partial = self._report.with_suffix(".partial")
        partial.write_text(json.dumps({"number": self._reports, **self._worst}))
        partial.replace(self._report)
        self._begin()


def main() -> None:
    report = Path(sys.argv.pop(1))
    msgspec.json.Decoder = CountingDecoder
    msgspec.json.decode = counted(msgspec.json.decode)
    # Only now: its modules make their decoders when they are imported.
    listener: Any = import_module("comity.http.server")
    make = listener.event_loop

    def watched_loop() -> asyncio.AbstractEventLoop:
        loop = make()
        Watch(loop, report)
        return loop

    # Whoever imports it from there from now on has this one.
    listener.event_loop = watched_loop
    cli: Any = import_module("comity.cli.main")
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
