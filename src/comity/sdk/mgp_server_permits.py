"""What a tool server was permitted by whoever operates its gateway. (MGP §3)

Rule 1: what was denied is done without: the tools that need it are refused, all others work.
Rule 2: what was deferred is waited for, a bounded time; then the call is refused, and may be tried
        again.
Rule 3: where nobody decides, as with a plain client, a server does what it always did.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, cast

from comity.sdk.mgp_server_peers import Request
from comity.wire.errors import INVALID_PARAMS, PERMISSION_DENIED, SERVER_NOT_READY
from comity.wire.security import LONGEST_NAME, MOST_NAMES, Decision

PATIENCE: Final = timedelta(seconds=10)


class Permits:
    """The decisions about what this server needs, as far as it was told of them."""

    def __init__(self, patience: timedelta = PATIENCE) -> None:
        self.patience = patience
        self._decided: dict[str, Decision] = {}
        self._news = asyncio.Condition()

    def __getitem__(self, permission: str) -> Decision | None:
        """What was decided; None where nobody said anything."""
        return self._decided.get(permission)

    def allow(self, needs: Iterable[str]) -> bool:
        """Whether none of these is undecided or denied."""
        return all(self._decided.get(name) in (None, Decision.APPROVED) for name in needs)

    async def wait(self, request: Request) -> dict[str, object]:
        """Somebody has yet to decide about these."""
        names = request.params.get("permissions")
        if not isinstance(names, list) or len(cast("list[object]", names)) > MOST_NAMES:
            raise request.refused(INVALID_PARAMS, "permissions is a list of names")
        found = cast("list[object]", names)
        await self._take({str(name)[:LONGEST_NAME]: Decision.DEFERRED for name in found})
        return {}

    async def decided(self, request: Request) -> dict[str, object]:
        grants = request.params.get("grants")
        if not isinstance(grants, dict) or len(cast("dict[str, object]", grants)) > MOST_NAMES:
            raise request.refused(INVALID_PARAMS, "grants names what was decided")
        found = cast("dict[str, object]", grants)
        if any(value not in Decision for value in found.values()):
            raise request.refused(INVALID_PARAMS, f"a grant is one of {', '.join(Decision)}")
        await self._take({name[:LONGEST_NAME]: Decision(str(d)) for name, d in found.items()})
        return {}

    async def hold(self, request: Request, needs: Iterable[str]) -> None:
        """Until a call may run. Raises the refusal where it may not."""
        wanted = tuple(needs)
        try:
            async with asyncio.timeout(self.patience.total_seconds()), self._news:
                await self._news.wait_for(lambda: not self._which(wanted, Decision.DEFERRED))
        except TimeoutError:
            waiting = ", ".join(self._which(wanted, Decision.DEFERRED))
            because = f"it is not decided yet whether this server may {waiting}"
            raise request.refused(SERVER_NOT_READY, because) from None
        if denied := self._which(wanted, Decision.DENIED):
            because = f"this server was not given {', '.join(denied)}"
            raise request.refused(PERMISSION_DENIED, because)

    def _which(self, names: Iterable[str], decision: Decision) -> list[str]:
        return [name for name in names if self._decided.get(name) is decision]

    async def _take(self, decided: Mapping[str, Decision]) -> None:
        room = MOST_NAMES - len(self._decided)
        new = [name for name in decided if name not in self._decided]
        async with self._news:
            left_out = set(new[max(room, 0) :])
            self._decided |= {name: d for name, d in decided.items() if name not in left_out}
            self._news.notify_all()
