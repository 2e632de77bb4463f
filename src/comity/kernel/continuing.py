"""Approved calls whose tool asks its client something: each next round goes on, once.

One approval is for one execution. In the modern era that takes several requests where a tool asks
its client something amid it; whoever has approved the first of them has approved the execution.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from msgspec import Raw

from comity.kernel.call import Call
from comity.rules import rounds
from comity.rules.eras import ROUND
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame

MOST: Final = 10_000
WITHIN: Final = timedelta(minutes=10)

type Key = tuple[str, bytes]
"""The digest of what was approved, for whom, and the state that its server gave to return with."""


class Continuing:
    """Executions that were approved and are not at their end. Forgotten, they are asked about."""

    def __init__(
        self, clock: Callable[[], datetime], most: int = MOST, within: timedelta = WITHIN
    ) -> None:
        self._clock = clock
        self._most = most
        self._within = within
        self._open: OrderedDict[Key, tuple[str, datetime]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def watch(self, call: Call, digest: str) -> None:
        """Have this execution go on where its tool asks something before it ends."""
        call.on_round = partial(self._hear, call.answered_by, digest)

    @staticmethod
    def is_round(frame: Frame) -> bool:
        """Whether a request goes on with something; most begin anew."""
        params = frame.params
        return params is not UNSET and any(name.encode() in bytes(params) for name in ROUND)

    def goes_on(self, call: Call, digest: str, frame: Frame) -> bool:
        """Whether this is the next round of what was approved; no other one is, from now on."""
        params = jsonrpc.params_of(frame)
        if ROUND.isdisjoint(params):
            return False
        found = self._open.pop(_key(digest, params.get("requestState")), None)
        if found is None or found[1] <= self._clock():
            return False
        call.answered_by = found[0]
        self.watch(call, digest)
        return True

    def _hear(self, approval: str, digest: str, frame: Frame) -> None:
        try:
            wanted = rounds.wanted_in(frame)
        except MalformedMessage:
            return
        if wanted is None:
            return
        while len(self._open) >= self._most:
            self._open.popitem(last=False)
        self._open[_key(digest, wanted.state)] = (approval, self._clock() + self._within)


def _key(digest: str, state: Raw | None) -> Key:
    said = "" if state is None else jsonrpc.text(state) or ""
    return digest, hashlib.sha256(said.encode(errors="surrogatepass")).digest()
