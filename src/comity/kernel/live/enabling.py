"""Which feature sets of each server are enabled: by the configuration, by grants, and until when.

What counts is decided from one snapshot of grants, and anew when that is another or one of them has
expired. While it is not known what is allowed, nothing is. (D-58, D-102)
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from comity.kernel.grants import Clock, Judge
from comity.kernel.live.hosted import Hosted
from comity.rules.live_policy import NOTHING, UNKNOWN, LivePolicy, SetStanding, standing_of
from comity.rules.permissions import SUBJECT
from comity.wire.errors import Unavailable
from comity.wire.grants import FEATURE
from comity.wire.parties import Actor, PartyKind

_NEVER: Final = object()


@dataclass(slots=True)
class Enabling:
    """Decides of each set of a server."""

    policy_of: Callable[[str], LivePolicy] = lambda _: NOTHING
    grants: Judge | None = None
    # What the grants are now: the very same thing until one of them is another.
    identity: Callable[[], object] = lambda: None
    clock: Clock = lambda: datetime.now(UTC)

    def is_due(self, hosted: Hosted) -> bool:
        """Whether what was decided of a server may be otherwise now."""
        if hosted.access is not self.identity():
            return True
        return hosted.until is not None and hosted.until <= self.clock()

    def decide(self, hosted: Hosted) -> bool:
        """Have a server's sets stand as they do now; whether others are enabled than before."""
        before = hosted.enabled
        hosted.policy = self.policy_of(hosted.server)
        hosted.access = self.identity()
        try:
            standings = {name: self._stands(hosted, name) for name in hosted.declared.sets}
        except Unavailable:
            hosted.access = _NEVER
            standings = dict.fromkeys(hosted.declared.sets, UNKNOWN)
        hosted.standings = standings
        hosted.until = _earliest(standings.values())
        hosted.enabled = frozenset(n for n, each in standings.items() if each.is_enabled)
        return hosted.enabled != before

    def _stands(self, hosted: Hosted, name: str) -> SetStanding:
        judged = None
        if self.grants is not None:
            actor = Actor(SUBJECT + hosted.server, PartyKind.SERVER)
            judged = self.grants.judge(actor, FEATURE, name, "")
        return standing_of(hosted.policy, name, judged)


def _earliest(standings: Iterable[SetStanding]) -> datetime | None:
    return min((each.until for each in standings if each.until is not None), default=None)
