"""What a server says of its own health and life: shown to operators, and never authority. (D-21)

Rule 1: which checks and resources a server has is its own affair; what it says of them is shown as
        it is, within bounds, and nothing here depends on any of it. (MGP §11.3)
Rule 2: a server that says it is going is asked at once how it is; its calls go out until it refuses
        them or is gone, for its word alone takes no server out of use.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec import Raw

from comity.kernel.health import ask_of_mgp, manages_lifecycle
from comity.kernel.pulse import Speaking
from comity.kernel.servers import Server, Servers, Transition
from comity.wire import jsonrpc, lifecycle
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.lifecycle import State, Status

log = logging.getLogger(__name__)

WITHIN_SECONDS: Final = 5.0
MOST_BYTES: Final = 64 * 1024
MOST_NAMED: Final = 64
LONGEST: Final = 200
_NUMBERS: Final = ("uptime_secs", "tools_available", "tools_total", "pending_requests")
_GOING: Final = frozenset({State.DRAINING, State.DISCONNECTED, State.ERROR, State.RESTARTING})

type Account = dict[str, object]


@dataclass(frozen=True, slots=True)
class Claim:
    """The last step of its life that a server told of by itself."""

    state: State
    reason: str
    at: datetime

    def shown(self) -> Account:
        return {"new_state": self.state, "reason": self.reason, "at": lifecycle.moment(self.at)}


class Accounts:
    """Hears what servers tell of their lives, and asks them how they are."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._claims: dict[str, Claim] = {}
        servers.watch(self._stepped)

    async def of(self, server: Server) -> Account | None:
        """What it says of itself now; None where it was not agreed that it be asked."""
        shared = server.reached.own or server.reached.modern
        if shared is None or not manages_lifecycle(shared.link):
            return None
        claim = self._claims.get(server.name)
        told = {} if claim is None else {"told": claim.shown()}
        try:
            async with asyncio.timeout(WITHIN_SECONDS):
                answer = await ask_of_mgp(
                    shared.link, lifecycle.HEALTH_STATUS, {}, modern=server.reached.own is None
                )
            return {**read(answer), **told}
        except TimeoutError:
            return {"problem": "it did not answer in time", **told}
        except (Unavailable, MalformedMessage) as error:
            return {"problem": str(error)[:LONGEST], **told}

    def _stepped(self, step: Transition) -> None:
        server = self._servers.get(step.server)
        if server is None:
            self._claims.pop(step.server, None)
        elif step.state is State.CONNECTED:
            self._claims.pop(step.server, None)
            shared = server.reached.own or server.reached.modern
            if shared is not None and manages_lifecycle(shared.link):
                server.pulse.notices[lifecycle.CHANGED] = self._told

    def _told(self, link: Speaking, frame: Frame) -> None:
        server = self._servers.get(link.server)
        claim = None if server is None else _claimed(frame)
        if server is None or claim is None:
            log.info("server %r told something of its life that cannot be read", link.server)
            return
        self._claims[server.name] = claim
        if claim.state in _GOING:
            server.doubt()


def read(answer: Frame) -> Account:
    """What an answer says, as far as it can be shown. Raises MalformedMessage."""
    if (error := jsonrpc.error_of(answer)) is not None:
        return {"problem": error.message[:LONGEST]}
    if answer.result is UNSET or len(answer.result) > MOST_BYTES:
        raise MalformedMessage(f"its answer is an object of at most {MOST_BYTES} bytes")
    found = jsonrpc.members(answer.result)
    said = jsonrpc.text(found.get("status"))
    numbers = {name: _number(found.get(name)) for name in _NUMBERS}
    return {
        "status": said if said in set(Status) else None,
        **{name: value for name, value in numbers.items() if value is not None},
        "resources": _named(found.get("resources")),
        "checks": _named(found.get("checks")),
    }


def _named(raw: Raw | None) -> dict[str, object]:
    """Whatever names it has, and of their values those that are one word or number."""
    try:
        found = None if raw is None else jsonrpc.value(raw)
    except MalformedMessage:
        return {}
    if not isinstance(found, dict):
        return {}
    members = list(cast("Mapping[str, Any]", found).items())[:MOST_NAMED]
    return {name[:LONGEST]: _short(value) for name, value in members}


def _short(value: object) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    return value[:LONGEST] if isinstance(value, str) else "…"


def _number(raw: Raw | None) -> float | None:
    try:
        found = jsonrpc.scalar(raw)
    except MalformedMessage:
        return None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return cast("float", found) if is_number else None


def _claimed(frame: Frame) -> Claim | None:
    try:
        if frame.params is UNSET or len(frame.params) > MOST_BYTES:
            return None
        said = jsonrpc.params_of(frame)
        state, reason = jsonrpc.text(said.get("new_state")), jsonrpc.text(said.get("reason"))
    except MalformedMessage:
        return None
    if state not in set(State):
        return None
    return Claim(State(str(state)), (reason or "")[:LONGEST], datetime.now(UTC))
