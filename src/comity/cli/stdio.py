"""`comity serve --stdio`: a client's pipes, joined to the one gateway of a configuration."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from comity.cli.bridge import READ_BYTES, Bridge, Place
from comity.cli.gateway_start import Joined, Wanted, join_or_start
from comity.cli.met import look_at_the_port
from comity.config import Found, Source
from comity.config.reading import read
from comity.wire.errors import Misconfigured
from comity.wire.jsonrpc import Limits
from comity.wire.lines import LineSplitter

_OPTIONS: Final = {"host": "--host", "port": "--port", "log_format": "--log-format"}


def join_gateway(source: Source, found: Found) -> None:
    """Pass on what the client at stdin says to the gateway, and back, until it closes stdin."""
    settings = found.settings
    limits = Limits(frame_bytes=settings.frame_bytes, depth=settings.depth)
    asyncio.run(_converse(_Gateway(source, found), limits))


async def _converse(gateway: "_Gateway", limits: Limits) -> None:
    loop = asyncio.get_running_loop()
    # Where no gateway can be had, that is said before anything is read.
    await gateway.find()
    reader = asyncio.StreamReader(limit=READ_BYTES)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, sys.stdout
        )
    except ValueError:
        raise Misconfigured(
            "--stdio needs pipes at stdin and stdout, as an MCP client has them; not files"
        ) from None
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    bridge = Bridge(gateway.find, writer, limits)
    try:
        await bridge.run(reader, LineSplitter(limits.frame_bytes))
    finally:
        gateway.leave()


class _Gateway:
    """The gateway of one configuration, joined again when another one runs in its place."""

    def __init__(self, source: Source, found: Found) -> None:
        self._source = source
        self._found = found
        config = found.files[0].absolute()
        # What a file says of other files is about its own folder, wherever a client starts us.
        folder = Path.cwd() if source.named is None else config.parent
        self._wanted = Wanted(config, folder, self._arguments)
        self._joined: Joined | None = None

    async def find(self) -> Place:
        """Where the gateway is now, and what is shown to it. Raises Unavailable."""
        joined = await asyncio.to_thread(join_or_start, self._wanted)
        self.leave()
        self._joined = joined
        key = os.environ.get("COMITY_KEY", "").strip() or joined.record.token
        log = self._wanted.log
        told = str(log) if log.exists() else ""
        return Place(joined.record.url, key, joined.record.started, told)

    def leave(self) -> None:
        if self._joined is not None:
            self._joined.leave()
            self._joined = None

    def _arguments(self) -> list[str]:
        """What a new gateway is told; a port that nobody chose is given up where it is taken."""
        over = dict(self._source.over)
        if not self._is_port_chosen():
            running, port = look_at_the_port(self._found.settings)
            over |= {"port": 0} if running or port.verdict == "problem" else {}
        said = [] if self._source.named is None else [str(self._wanted.config)]
        said += ["--discovery"] if "discovery_mode" in over else []
        options = ((option, str(over[name])) for name, option in _OPTIONS.items() if name in over)
        return [*said, *(word for pair in options for word in pair)]

    def _is_port_chosen(self) -> bool:
        environ = self._source.environ
        if "port" in self._source.over or environ.get("COMITY_PORT"):
            return True
        return any("port" in read(file, environ).decided for file in self._found.files)
