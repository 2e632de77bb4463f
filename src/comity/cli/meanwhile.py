"""What a call tells before it ends: progress as a bar on a terminal, as lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Final, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from comity.adapters.upstream.stderr import harmless
from comity.wire import mcp

type Frame = dict[str, Any]

LINE_EVERY_SECONDS: Final = 1.0
LONGEST: Final = 200
LEAST_COUNT: Final = 0.001
"""Less than this, of no known total, counts nothing: a sender only has to let it grow."""


class Meanwhile:
    """What is shown on standard error while a call runs."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._live: Progress | None = None
        self._task: Any = None
        self._last_line = 0.0
        if sys.stderr.isatty():
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(20),
            )
            console = Console(stderr=True, highlight=False)
            self._live = Progress(*columns, MofNCompleteColumn(), console=console, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._task = self._live.add_task(self._about, total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, method: str, params: Frame) -> None:
        """Whatever a server tells amid a call."""
        if method == mcp.PROGRESS:
            self._show_progress(params)
        elif method == mcp.MESSAGE:
            self._say(f"{params.get('level', 'log')}: {params.get('data', '')}")

    def say(self, line: str) -> None:
        """Something of the program's own, whole."""
        self._say(line, len(line))

    def pause(self) -> None:
        """Leave the terminal to a question."""
        if self._live is not None:
            self._live.stop()

    def resume(self) -> None:
        if self._live is not None:
            self._live.start()

    def _show_progress(self, params: Frame) -> None:
        done, total = _number(params.get("progress")), _number(params.get("total"))
        message = harmless(str(params.get("message") or ""))[:LONGEST]
        if self._live is not None:
            about = f"{self._about}  {message}" if message else self._about
            self._live.update(self._task, completed=done or 0, total=total, description=about)
        elif time.monotonic() - self._last_line >= LINE_EVERY_SECONDS or done == total:
            self._last_line = time.monotonic()
            if told := f"{_counted(done or 0, total)} {message}".strip():
                self._say(told)

    def _say(self, line: str, longest: int = LONGEST) -> None:
        text = f"comity: {harmless(line)[:longest]}"
        if self._live is not None:
            self._live.console.print(text, style="dim", markup=False, soft_wrap=True)
        else:
            click.echo(text, err=True)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _counted(done: float, total: float | None) -> str:
    """How far it is; empty where the number tells nothing."""
    if total is not None:
        return f"{done:g} of {total:g}"
    return f"{done:g}" if done >= LEAST_COUNT else ""
