"""Where webhooks are kept, and what waits for them until it was delivered or given up. (0042)

Rule 1: what `add` has returned for is durable; with its mark it is all there, or nothing of it is.
Rule 2: one holder at a time posts for a subscription. A claim that nobody settled in time lapses,
        and one that lapsed can settle nothing.
Rule 3: an event is kept at most once for a subscription, for as long as it is remembered that it
        was delivered.
Rule 4: a store that does not answer raises Unavailable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

from comity.wire.webhooks import Place, Post, Problem, Subscription

PAGE: Final = 250


class Mark(NamedTuple):
    """How far a journal's chain was looked through for events, and how far it is now."""

    chain: str
    seen: int
    upto: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """What came of a claim: how the subscription stands now, and each post that was tried.

    `delivered` are numbers of posts, `tried` posts as they are now. Until `rest_until` nobody else
    tries either.
    """

    subscription: Subscription
    at: datetime
    delivered: tuple[int, ...] = ()
    tried: tuple[Post, ...] = ()
    rest_until: datetime | None = None


class WebhookRecords(Protocol):
    async def put(self, subscription: Subscription) -> None:
        """Write it; or another end, other secrets and its being active in the place of what one
        with this id had. What waits for it, and how that went, stays."""
        ...

    async def get(self, id: str) -> Subscription | None: ...

    async def of(self, party: str) -> Sequence[Subscription]: ...

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Subscription]:
        """By id, from the one after that id on."""
        ...

    async def remove(self, id: str) -> bool:
        """With all that waits for it."""
        ...

    async def begin(self) -> None:
        """Where there is no subscription, mark every chain as looked through up to its end."""
        ...

    async def marks(self) -> Mapping[str, int]: ...

    async def add(self, posts: Sequence[Post], most: int, mark: Mark | None = None) -> bool:
        """Have these wait, up to so many for a subscription: of more it is only counted that they
        were dropped. False, and nothing done, where somebody else has moved the mark."""
        ...

    async def claim(
        self, holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[Subscription]:
        """Those that are active and have something due, for this holder alone until then."""
        ...

    async def due(self, id: str, now: datetime, limit: int) -> Sequence[Post]:
        """In the order in which they were written."""
        ...

    async def settle(self, holder: str, settlement: Settlement) -> bool:
        """Write down what came of a claim, which ends it; False where the holder has it no more."""
        ...

    async def abandon(self, holders: str) -> None:
        """Void the claims of all holders whose names begin so."""
        ...

    async def posts(self, id: str, after: int = 0, limit: int = PAGE) -> Sequence[Post]:
        """What waits and what has failed, by number."""
        ...

    async def retry(self, id: str, now: datetime) -> int:
        """Have all that failed wait again, and the subscription be active; how many that were."""
        ...

    async def prune(self, now: datetime, remembered: datetime) -> Sequence[Subscription]:
        """Remove subscriptions that have ended, and forget what was delivered before then."""
        ...


class Answered(NamedTuple):
    """How a place answered a post; `again_in` is how long it wants to be left alone."""

    status: int
    again_in: timedelta = timedelta(0)
    body: bytes = b""


class Poster(Protocol):
    """Who brings a post to its place: once, in bounded time, and nowhere else."""

    async def post(
        self, where: Place, heading: Mapping[str, str], body: bytes, most: int = 0
    ) -> Answered | Problem:
        """How it was answered, with up to so many bytes of that; or why it was not."""
        ...


class Sealer(Protocol):
    """Who hides secrets from whoever reads a store."""

    def seal(self, secret: bytes) -> bytes: ...

    def unseal(self, sealed: bytes) -> bytes | None:
        """None where somebody else sealed it, or changed it."""
        ...
