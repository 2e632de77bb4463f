"""What whoever starts a gateway sees of that: each server as it comes, then how to connect.

On a terminal a table that lives until every server was tried; elsewhere a line for each.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Final, TextIO, cast, override

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from comity.adapters.log_lines import LogFormat, announce
from comity.app.assembly import Parts
from comity.cli.show import paragraphs, plain, state
from comity.kernel.catalog import Catalog, Kind
from comity.kernel.servers import Server
from comity.rules.phrases import count_noun
from comity.wire.lifecycle import State

LOOK_EVERY_SECONDS: Final = 0.1
LAST_WORDS: Final = 3
MOST_ROWS: Final = 200
REMEDY: Final = "`comity servers show NAME` tells why one failed, `comity doctor` what to do."


@contextlib.asynccontextmanager
async def shown_start(parts: Parts, form: LogFormat) -> AsyncGenerator[Callable[[str], None]]:
    """Gives what is to be told the address at which connections are accepted."""
    telling: list[asyncio.Task[None]] = []
    at_a_terminal = form == "text" and sys.stderr.isatty()
    start = Start(parts)

    def tell(address: str) -> None:
        announce(f"listening on {address}")
        work = start.live(address) if at_a_terminal else start.in_lines()
        telling.append(asyncio.ensure_future(work))

    try:
        yield tell
    finally:
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)


class Start:
    """The first start of every server that a gateway begins with."""

    def __init__(self, parts: Parts) -> None:
        self._servers = list(parts.servers)
        self._catalog = parts.catalog
        self._began = time.monotonic()
        self._took: dict[str, float] = {}
        self._in_ascii = False
        self._spinner = Spinner("line")

    async def in_lines(self) -> None:
        """A line for each server, when it was tried; why one failed stands in the log."""
        await asyncio.gather(*(self._in_a_line(server) for server in self._servers))
        if self._has_failed:
            announce(REMEDY)

    async def _in_a_line(self, server: Server) -> None:
        await server.tried.wait()
        took = time.monotonic() - self._began
        if server.state is State.CONNECTED:
            offered = _offered(self._catalog, server)
            announce(f"server {server.name!r} is ready after {took:.1f} s: {offered}")
            return
        for line in _last_words(server):
            announce(f"server {server.name!r} said: {line}")
        announce(f"server {server.name!r} is not ready")

    @property
    def _has_failed(self) -> bool:
        return any(server.state is not State.CONNECTED for server in self._servers)

    async def live(self, address: str) -> None:
        """The table, drawn anew until nothing in it can change, and then left standing."""
        if not self._servers:
            announce("there are no servers; add some to the configuration, or run `comity init`")
            return
        console = Console(stderr=True, highlight=False)
        self._in_ascii = console.options.ascii_only
        self._spinner = Spinner("line" if self._in_ascii else "dots")
        terminal = sys.stderr
        living = Live(console=console, auto_refresh=False, transient=True)
        with living as live, _log_above(terminal):
            while not all(server.tried.is_set() for server in self._servers):
                # What is drawn again and again must fit on the screen.
                live.update(self._table(max(1, console.height - 4)), refresh=True)
                await asyncio.sleep(LOOK_EVERY_SECONDS)
        console.print(self._table(MOST_ROWS), self._summary(address))

    def _table(self, rows: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for server in self._servers[:rows]:
            table.add_row(self._mark(server), plain(server.name), *self._told(server))
        more = len(self._servers) - rows
        if more > 0:
            table.add_row("", plain(f"and {more} more", "dim"), "", "")
        return table

    def _mark(self, server: Server) -> Spinner | Text:
        if not server.tried.is_set():
            return self._spinner
        self._took.setdefault(server.name, time.monotonic() - self._began)
        if server.state is State.CONNECTED:
            return plain("+" if self._in_ascii else "✓", "green")
        return plain("!" if self._in_ascii else "✗", "bold red")

    def _told(self, server: Server) -> tuple[Text, Text]:
        if not server.tried.is_set():
            return plain(f"{time.monotonic() - self._began:.0f} s", "dim"), plain("starting", "dim")
        took = plain(f"{self._took.get(server.name, 0):.1f} s", "dim")
        if server.state is State.CONNECTED:
            return took, plain(_offered(self._catalog, server))
        said = "\n".join([server.reason, *_last_words(server)])
        return state(server.state, server.reason), paragraphs(said)

    def _summary(self, address: str) -> Text:
        ready = sum(server.state is State.CONNECTED for server in self._servers)
        tools = sum(self._catalog.count(server.name, Kind.TOOL) for server in self._servers)
        servers = count_noun(len(self._servers), "server")
        counted = f"{ready} of {servers} ready, {count_noun(tools, 'tool')}."
        remedy = f"{REMEDY}\n" if self._has_failed else ""
        how = "Connect a client: `comity client connect NAME`, or give it "
        return Text.assemble("\n", (counted, "bold"), "\n", remedy, how, (f"{address}/mcp", "cyan"))


def _offered(catalog: Catalog, server: Server) -> str:
    kinds = {Kind.TOOL: "tool", Kind.PROMPT: "prompt", Kind.RESOURCE: "resource"}
    counts = {noun: catalog.count(server.name, kind) for kind, noun in kinds.items()}
    told = ", ".join(count_noun(count, noun) for noun, count in counts.items() if count)
    return told or "offers nothing"


def _last_words(server: Server) -> list[str]:
    """What it said on its error output; the reason may have said the last of it already."""
    return [line for line in list(server.hints())[-LAST_WORDS:] if line not in server.reason]


@contextlib.contextmanager
def _log_above(terminal: TextIO) -> Generator[None]:
    """Let lines of the log go above the table; and none repeat what the table shows itself."""
    streams = [each for each in logging.getLogger().handlers if _writes_to(each, terminal)]
    handlers = cast("list[logging.StreamHandler[TextIO]]", streams)
    quiet = _Quiet()
    for handler in handlers:
        # While the table lives, this is rich's own way to the terminal.
        handler.setStream(sys.stderr)
        handler.addFilter(quiet)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(terminal)
            handler.removeFilter(quiet)


def _writes_to(handler: logging.Handler, stream: TextIO) -> bool:
    return getattr(handler, "stream", None) is stream


class _Quiet(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("server %r")
