"""Counts what a stretch of code does: Python and C calls, tasks, futures, decodes, encodes."""

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Final

import aiosqlite
import msgspec

KINDS: Final = ("python", "c_calls", "tasks", "futures", "decodes", "encodes")
_OWN: Final = (
    str(Path(__file__).parent) + "/",
    contextlib.__file__,
    str(Path(logging.__file__).parent),
    str(Path(aiosqlite.__file__).parent),
)
"""What is not of the call: the counting itself, and what the threads of a store do at any time."""


class CallCounter:
    """Counts calls in all threads while it is on, by `sys.monitoring`.

    The code of the benches themselves is not counted.
    """

    TOOL = sys.monitoring.PROFILER_ID

    def __init__(self) -> None:
        self.functions: Counter[CodeType] = Counter()
        self.counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        monitoring = sys.monitoring
        events = monitoring.events
        monitoring.use_tool_id(self.TOOL, "comity call budget")
        monitoring.register_callback(self.TOOL, events.PY_START, self._on_start)
        monitoring.register_callback(self.TOOL, events.CALL, self._on_call)
        monitoring.set_events(self.TOOL, events.PY_START | events.CALL)
        try:
            yield
        finally:
            monitoring.set_events(self.TOOL, 0)
            monitoring.free_tool_id(self.TOOL)

    def _on_start(self, code: CodeType, _: int) -> None:
        if not code.co_filename.startswith(_OWN):
            self.functions[code] += 1

    def _on_call(self, code: CodeType, _: int, called: object, first: object) -> None:
        if code.co_filename.startswith(_OWN) or isinstance(called, FunctionType | MethodType):
            return
        self.counts["c_calls"] += 1
        name, owner = getattr(called, "__name__", ""), getattr(called, "__self__", first)
        if name == "decode" and isinstance(owner, msgspec.json.Decoder):
            self.counts["decodes"] += 1
        elif name == "encode" and isinstance(owner, msgspec.json.Encoder):
            self.counts["encodes"] += 1
        elif called in (msgspec.json.encode, msgspec.json.decode):
            self.counts["encodes" if called is msgspec.json.encode else "decodes"] += 1
        elif called is asyncio.Task or name == "create_task":
            self.counts["tasks"] += 1
        elif name == "create_future":
            self.counts["futures"] += 1

    def figures(self) -> dict[str, int]:
        python = sum(self.functions.values())
        return {"python": python} | {kind: self.counts[kind] for kind in KINDS[1:]}

    def modules(self) -> Counter[str]:
        """The calls by module, named by its package."""
        found: Counter[str] = Counter()
        for code, times in self.functions.items():
            found[place_of(code)] += times
        return found


def place_of(code: CodeType) -> str:
    parts = Path(code.co_filename).parts
    for root in ("comity", "site-packages"):
        if root in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(root) :])
    return "/".join(parts[-2:])
