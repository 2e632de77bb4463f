"""What is asked by programs that look after programs: health, readiness, and figures.

`/health` says that the process answers, and knows nothing else: whoever restarts Comity by it must
not do so because a server behind it is broken. `/ready` says that there is something to use.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final
from urllib.parse import parse_qs

from comity.kernel.servers import Server, Servers
from comity.surfaces import doorway
from comity.surfaces.doorway import Receive, Scope, Send
from comity.surfaces.gateway import ACTOR, Door
from comity.surfaces.guard import GUARD, Guard
from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.exposition import CONTENT_TYPE, Family, encode
from comity.wire.lifecycle import State
from comity.wire.parties import NOBODY, Actor

type Source = Callable[[], Iterable[Family]]
type Knows = Callable[[Actor, str], bool]
"""Whether somebody may know that there is such a server."""

QUERY_FIELDS: Final = 8
_FRESH: Final = ((b"cache-control", b"no-store"),)
_READ_ONLY: Final = ((b"allow", b"GET, HEAD"),)


class Probes:
    """The doors for those who only look."""

    def __init__(
        self,
        servers: Servers,
        sources: Sequence[Source],
        knows: Knows,
        policy_problem: Callable[[], str] = str,
    ) -> None:
        self._servers = servers
        self._knows = knows
        self.sources = list(sources)
        # Why calls cannot be judged here; empty while they can.
        self.policy_problem = policy_problem
        # Why the other nodes cannot be reached; empty while they can, or where there are none.
        self.cut_off: Callable[[], str] = str
        # How many other nodes there are; nothing where this is the only one there can be.
        self.nodes: Callable[[], Mapping[str, object]] = dict
        self._was_ready = False

    @property
    def doors(self) -> dict[str, Door]:
        return {"/health": self.health, "/ready": self.ready, "/metrics": self.metrics}

    async def health(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        await doorway.answer(send, 200, b'{"status":"ok"}')

    async def ready(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """200 once every server was tried; with `strict`, while all (or the named) are connected.

        A server that comes later, by a change of the configuration, takes nothing back of that.
        No server is named here, and no reason: what is wrong with one may hold its secrets. A node
        that cannot reach the others is not ready, unless only what is `local` is asked after. One
        that misses another node says so, and is ready: it serves without it. One whose store does
        not answer is not ready, though it may serve for a while by what it knows: another node may
        reach the store, and this one will refuse every call before long.
        """
        asked = _query(scope.get("query_string", b""))
        servers = self._asked_for(asked.get("server", []), scope.get(ACTOR, NOBODY))
        tried = all(server.tried.is_set() for server in servers)
        connected = all(server.state is State.CONNECTED for server in servers)
        strict = "strict" in asked or "server" in asked
        if not strict:
            tried = self._was_ready = tried or self._was_ready
        status = "starting" if not tried else "degraded" if strict and not connected else "ready"
        cut_off = self.cut_off()
        if cut_off and status == "ready" and "local" not in asked:
            status = "cut off"
        status = self.policy_problem() or status
        body: dict[str, object] = {"status": status}
        body["servers"] = Counter(server.state for server in servers)
        if nodes := self.nodes():
            body["cluster"] = {"status": "joined", **nodes}
        if cut_off:
            body["cluster"] = {"status": "cut off", "reason": cut_off}
        code = 200 if status == "ready" else 503
        await doorway.answer(send, code, jsonrpc.to_json(body), _FRESH)

    async def metrics(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """The figures in pieces: between two of them the calls go on."""
        if scope["method"] not in ("GET", "HEAD"):
            await doorway.empty(send, 405, _READ_ONLY)
            return
        guard: Guard | None = scope.get("state", {}).get(GUARD)
        seen = () if guard is None else guard.families()
        head = [(b"content-type", CONTENT_TYPE), *_FRESH]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for piece in encode(chain(seen, *(source() for source in self.sources))):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    def _asked_for(self, names: list[str], actor: Actor) -> list[Server]:
        """The servers of these names, or all; to whom one is not granted, there is none."""
        if not names:
            return list(self._servers)
        known = [self._servers.get(name) if self._knows(actor, name) else None for name in names]
        servers = [server for server in known if server is not None]
        if len(servers) != len(names):
            raise MalformedMessage("no server of that name is configured", NOTHING_HERE)
        return servers


def _query(written: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(
            written.decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_FIELDS
        )
    except ValueError:
        raise MalformedMessage("too much is asked at once", INVALID_PARAMS) from None
