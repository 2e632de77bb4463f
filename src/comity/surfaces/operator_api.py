"""What operators read and change at /api: the gateway and its servers, and rooms for the rest.

The doorway has looked at Host and Origin before anybody comes here. What changes something is
guarded once more: no page of another site may do it, not even of one that may call tools.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from comity.kernel.accounts import Accounts
from comity.kernel.catalog import Catalog, Kind
from comity.kernel.servers import Server, Servers
from comity.kernel.sessions import Sessions
from comity.kernel.underway import Underway
from comity.surfaces import doorway
from comity.surfaces.asked import Room, read_json, refuse_other_sites, visit
from comity.surfaces.doorway import Receive, Scope, Send
from comity.surfaces.gateway import ACTOR, OPERATORS
from comity.wire import jsonrpc
from comity.wire.errors import NOTHING_HERE, MalformedMessage, Misconfigured
from comity.wire.lifecycle import State
from comity.wire.parties import NOBODY, Actor

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
REASON_LENGTH: Final = 2000
WELL: Final = frozenset({State.CONNECTED, State.DISCONNECTED})

type View = dict[str, object]
type Deed = Callable[[str, str], Awaitable[None]]
"""What is done to the server of that name, by the order of that party."""


@dataclass(frozen=True, slots=True)
class Overseen:
    """The parts of a gateway that an operator looks after."""

    servers: Servers
    catalog: Catalog
    sessions: Sessions
    underway: Underway
    about: Mapping[str, object]
    # How each server is reached, without anything that may be a secret.
    describe: Callable[[str], Mapping[str, str]]
    # What each server needs to do its work, and what it was given of that.
    needs: Callable[[str], Sequence[View]] = lambda _: ()
    # What a server says of its own health when it is asked. (MGP §11.3)
    accounts: Accounts | None = None


class OperatorApi:
    """The one door of everything under /api/."""

    def __init__(self, overseen: Overseen, rooms: Mapping[str, Room] | None = None) -> None:
        self._rooms = rooms or {}
        self._servers = overseen.servers
        self._catalog = overseen.catalog
        self._overseen = overseen
        self._began = datetime.now(UTC)
        self._doing: set[asyncio.Task[None]] = set()
        self._deeds: dict[str, Deed] = {
            "restart": self._servers.restart,
            "stop": self._servers.halt,
            "start": self._servers.begin,
        }

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        place = scope["path"].removeprefix(OPERATORS).split("/")
        if place[0] in self._rooms:
            await visit(self._rooms[place[0]], scope, headers, receive, send)
            return
        deed = self._deed(place)
        if scope["method"] != ("GET" if deed is None else "POST"):
            await doorway.empty(send, 405, ((b"allow", b"GET" if deed is None else b"POST"),))
            return
        if deed is None:
            found = self._read(place)
            if len(place) == 2 and self._overseen.accounts is not None:
                found["account"] = await self._overseen.accounts.of(self._server(place[1]))
        else:
            refuse_other_sites(headers)
            await read_json(headers, receive)
            by: Actor = scope.get(ACTOR, NOBODY)
            found = await self._do(self._server(place[1]), deed, by.party)
        # What stands here today may be gone tomorrow, and is nobody else's to keep.
        await doorway.answer(
            send, 200, bytes(jsonrpc.to_raw(found)), ((b"cache-control", b"no-store"),)
        )

    def _deed(self, place: list[str]) -> Deed | None:
        is_one = len(place) == 3 and place[0] == "servers"
        return self._deeds.get(place[2]) if is_one else None

    async def _do(self, server: Server, deed: Deed, by: str) -> View:
        """Begin it, and tell how the server is once it is done, or in a while.

        A deed waits for the calls under way. It goes on when whoever asked for it has gone.
        """
        doing = asyncio.ensure_future(_logged(deed, server.name, by))
        self._doing.add(doing)
        doing.add_done_callback(self._doing.discard)
        await asyncio.wait([doing], timeout=PATIENCE_SECONDS)
        return self._whole(self._server(server.name))

    def _read(self, place: list[str]) -> View:
        match place:
            case ["status"]:
                return self._status()
            case ["servers"]:
                return {"servers": [self._brief(server) for server in self._servers]}
            case ["servers", name]:
                return self._whole(self._server(name))
            case ["servers", name, "logs"]:
                return {"id": name, "lines": list(self._server(name).hints())}
            case _:
                raise MalformedMessage("there is no such address under /api", NOTHING_HERE)

    def _server(self, name: str) -> Server:
        server = self._servers.get(name)
        if server is None:
            raise MalformedMessage(f"there is no server {name!r:.200}", NOTHING_HERE)
        return server

    def _status(self) -> View:
        states = [server.state for server in self._servers]
        tools = sum(self._catalog.count(server.name, Kind.TOOL) for server in self._servers)
        troubled = [each for each in self._servers if each.reason and each.state not in WELL]
        return {
            **self._overseen.about,
            "started": self._began,
            "ready": self._servers.all_tried,
            "servers": {state: states.count(state) for state in State if state in states},
            "troubled": [
                {"id": each.name, "state": each.state, "reason": each.reason[:REASON_LENGTH]}
                for each in troubled
            ],
            "tools": tools,
            "sessions": len(self._overseen.sessions),
            "calls": len(self._overseen.underway),
        }

    def _brief(self, server: Server) -> View:
        return {
            "id": server.name,
            "state": server.state,
            "reason": server.reason[:REASON_LENGTH],
            "since": server.since,
            "restarts": server.restarts,
            # What the server says of itself, where it speaks MGP.
            "health": server.health.status,
            **self._overseen.describe(server.name),
            "eras": sorted(server.reached.eras),
            **{kind: self._catalog.count(server.name, kind) for kind in Kind},
            "set_aside": len(self._catalog.quarantined(server.name)),
        }

    def _whole(self, server: Server) -> View:
        """All that is known of one server: also what it said of itself, and last."""
        return {
            **self._brief(server),
            "set_aside": dict(self._catalog.quarantined(server.name)),
            "permissions": list(self._overseen.needs(server.name)),
            "info": _said(server, "serverInfo"),
            "instructions": _said(server, "instructions"),
            "lines": list(server.hints()),
        }


def _said(server: Server, member: str) -> object:
    return (server.reached.hello or server.reached.discovered).get(member)


async def _logged(deed: Deed, name: str, by: str) -> None:
    """Whoever asked may be gone when it fails; the log is not."""
    try:
        await deed(name, by)
    except Misconfigured as error:
        log.warning("an operator's order came too late: %s", error)
    except Exception:
        log.exception("an operator's order about server %r ended in a bug", name)
