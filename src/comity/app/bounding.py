"""How a registered server is reached: its program within bounds, its URL at public addresses only.

What a program may do is decided when it starts: without the permission it has no network.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from comity.adapters.names import Resolver
from comity.adapters.upstream.command import Command
from comity.adapters.upstream.confined import Bounds, confined
from comity.adapters.upstream.http import HttpReach
from comity.adapters.upstream.stdio import StdioReach
from comity.app.reaching import Pools
from comity.config import Settings
from comity.ports import Carrier
from comity.rules.addresses import answers_problem, host_problem
from comity.wire.errors import UPSTREAM_DOWN, Misconfigured, Unavailable
from comity.wire.jsonrpc import Limits
from comity.wire.mcp import Era
from comity.wire.registration import Wanted

MEMORY: Final = 1024 * 1024 * 1024
TOOL_FILE: Final = "tool.py"


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program that is started anew with whatever it may do by then."""

    wish: Wanted
    folder: Path
    settings: Settings
    may_use_network: Callable[[], bool]
    costs_a_process: bool = True

    def carrier(self, era: Era) -> Carrier:
        home = str(self.folder)
        # A place of its own: what stands in the operator's home is not its business.
        env = {"HOME": home, "TMPDIR": home}
        return StdioReach(self.wish.id, Command(self._argv(), env, home)).carrier(era)

    def _argv(self) -> tuple[str, ...]:
        argv = self.wish.words
        if self.wish.code:
            file = str(self.folder / TOOL_FILE)
            argv = (sys.executable, "-I", "-m", "comity.sdk.tool_file", file)
        network = self.may_use_network()
        if not self.settings.registration_confine:
            return argv
        bounds = Bounds(
            network,
            MEMORY,
            _expanded(self.settings.registration_readable),
            (str(self.folder), *_expanded(self.settings.registration_writable)),
        )
        return confined(bounds, argv)


def guarded_pools(pools: Pools, resolver: Resolver, hosts: frozenset[str]) -> Pools:
    """Connections of their own for URLs that others chose: each is looked at when it is opened.

    A name that led to a public address when it was registered may lead elsewhere the next time.
    """

    async def find(host: str) -> str:
        problem, name = host_problem(host, hosts)
        if problem is None and not name:
            return host
        answers = await resolver.resolve(name) if problem is None else ()
        if problem is None and not answers:
            return ""
        problem = problem or answers_problem(answers)
        if problem is not None or not answers:
            raise Unavailable(f"{host:.200} is refused: {problem}", UPSTREAM_DOWN)
        return answers[0]

    return Pools(pools.calls.like(find), pools.streams.like(find))


def bound_url(wish: Wanted, pools: Pools, limits: Limits) -> HttpReach:
    return HttpReach(pools.calls, wish.url, {}, limits, pools.streams)


def folders_of(settings: Settings) -> tuple[Path, ...]:
    """Where scripts may stand that are registered; raises Misconfigured."""
    found = tuple(Path(each) for each in _expanded(settings.registration_folders))
    for folder in found:
        if not folder.is_dir():
            raise Misconfigured(f"folders in [registration]: there is no folder {folder}")
    return found


def _expanded(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(Path(each).expanduser()) for each in folders)
