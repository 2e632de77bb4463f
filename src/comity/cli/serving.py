"""A gateway in this process: opened, recorded for other processes of its user, and ended."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from datetime import timedelta
from pathlib import Path

from comity.adapters.log_lines import announce
from comity.app.assembly import Parts, assembled
from comity.app.recognising import refuse_an_open_door
from comity.app.reload import followed
from comity.cli.gateway_records import new_token, prepare_folder, remove_record, write_record
from comity.cli.idling import Idling
from comity.cli.met import refuse_a_taken_port
from comity.cli.starting import shown_start
from comity.config import Found, Settings, Source
from comity.rules.forwarded import TrustedProxies
from comity.rules.phrases import count_noun
from comity.surfaces.listener import Limits, Shutdown, event_loop, listen
from comity.wire.errors import Misconfigured
from comity.wire.lifecycle import State

try:
    import resource
except ImportError:  # only Unix limits open files this way
    resource = None

log = logging.getLogger(__name__)

GC_THRESHOLDS = (20_000, 20, 50)


def serve(source: Source, found: Found, idle: timedelta | None) -> None:
    """Run a gateway until it is told to end; or, with `idle`, until nobody needs it that long."""
    settings = found.settings
    refuse_an_open_door(settings)
    refuse_a_taken_port(settings)
    if settings.identity_mode == "local":
        # Nobody could be an operator without the token that is kept there.
        prepare_folder()
    # What stands now stands for good; looking through it again and again would cost every call.
    allow_many_files()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_serve(source, settings, found.files[0], idle))


async def _serve(source: Source, settings: Settings, config: Path, idle: timedelta | None) -> None:
    token = new_token() if settings.identity_mode == "local" else ""
    record = _Record(config, token)
    async with (
        assembled(settings, operator_token=token) as parts,
        followed(source, parts.residents, announce, parts.governance.decide),
        shown_start(parts, settings.log_format) as started,
    ):
        parts.end_by(_end)
        idling = Idling(parts.gateway, lambda: _is_needed(parts))

        def listening(origin: str) -> None:
            parts.asking.listens_at(origin)
            record.write(origin)
            started(origin)
            record.tell()
            if idle is not None and record.file is not None:
                idling.watch(record.file, idle, _end)

        with contextlib.closing(record), contextlib.closing(idling):
            # Only a gateway that ends by itself counts its requests.
            await listen(
                parts.gateway if idle is None else idling,
                settings.host,
                settings.port,
                limits=_limits(settings),
                started=listening,
                shutdown=Shutdown(lambda: _begin_to_stop(parts), parts.underway.interrupt),
            )


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _begin_to_stop(parts: Parts) -> None:
    running = sum(server.state is State.CONNECTED for server in parts.servers)
    announce(f"stopping {count_noun(running, 'server')}" if running else "stopping")
    parts.end_streams()


def _is_needed(parts: Parts) -> bool:
    """Whether a call runs, or an approval request waits that only this process may know."""
    return bool(len(parts.underway)) or parts.asking.approvals.has_open


class _Record:
    """What tells other processes of this user where this gateway listens."""

    def __init__(self, config: Path, token: str) -> None:
        self._config = config
        self._token = token
        self.file: Path | None = None

    def write(self, origin: str) -> None:
        try:
            self.file = write_record(origin, self._config, self._token)
        except Misconfigured as problem:
            if self._token:
                raise
            # Keys and tokens work without it; only the commands find this gateway less easily.
            log.warning("commands do not find this gateway by its configuration: %s", problem)

    def tell(self) -> None:
        if self.file is not None and self._token:
            announce(f"the operator token for `comity` commands is in {self.file}")

    def close(self) -> None:
        if self.file is not None:
            remove_record(self.file)


def _limits(settings: Settings) -> Limits:
    return Limits(
        connections=settings.max_connections,
        connections_per_address=settings.max_connections_per_address,
        proxies=TrustedProxies(settings.trusted_proxies),
        header_time=settings.header_deadline,
        keep_alive=settings.keep_alive,
        grace=settings.shutdown_grace,
    )


def allow_many_files() -> None:
    """Every connection is an open file; take as many as the system lets this process have."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):  # some systems refuse their own hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
