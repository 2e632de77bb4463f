"""Pushes at /api/pushes: which came last, where they went, and what came of them."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from comity.ports.pushes import PAGE, PushRecords
from comity.surfaces.asked import Asked, Room, View
from comity.wire.errors import NOTHING_HERE, MalformedMessage
from comity.wire.pushes import KeptPush

_MOST_DIGITS: Final = 18


class PushesApi:
    """What was pushed, for those who may administer the gateway; never what was in it."""

    def __init__(
        self, records: PushRecords, clock: Callable[[], datetime], stir: Callable[[], None]
    ) -> None:
        self._records = records
        self._clock = clock
        self._stir = stir

    @property
    def rooms(self) -> dict[str, Room]:
        return {"pushes": self.pushes}

    async def pushes(self, asked: Asked) -> View:
        match asked.method, asked.place:
            case "GET", ():
                return await self._list(asked.query)
            case "POST", (number, "retry"):
                if not await self._records.retry(_number(number), self._clock()):
                    raise MalformedMessage("no push of this number has failed", NOTHING_HERE)
                self._stir()
                return {"number": _number(number), "state": "waiting"}
            case _:
                raise MalformedMessage("there is no such address under /api/pushes", NOTHING_HERE)

    async def _list(self, query: View) -> View:
        before = _number(str(query.get("cursor") or 0))
        page = await self._records.page(before, PAGE, str(query.get("server") or ""))
        found = await self._records.figures()
        listed: dict[str, object] = {
            "pushes": [_view(each) for each in page],
            "waiting": found.waiting,
            "done": found.done,
            "failed": found.failed,
        }
        return listed if len(page) < PAGE else {**listed, "next": str(page[-1].number)}


def _number(written: str) -> int:
    is_number = written.isascii() and written.isdigit() and len(written) <= _MOST_DIGITS
    if not is_number:
        raise MalformedMessage("a push is known by its number", NOTHING_HERE)
    return int(written)


def _view(kept: KeptPush) -> dict[str, object]:
    return {
        "number": kept.number,
        "server": kept.push.server,
        "event": kept.push.id,
        "feature_set": kept.push.feature or None,
        "timestamp": kept.push.at,
        "received_at": kept.received_at,
        "to": str(kept.route),
        "conversation": kept.route.conversation or None,
        "state": kept.state,
        "attempts": kept.attempts,
        "inference": kept.inference or None,
        "due_at": kept.due_at if kept.done_at is None else None,
        "done_at": kept.done_at,
        "last_error": kept.last_error or None,
    }
