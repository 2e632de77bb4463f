"""What a call that waits for a person and the call pipeline know of each other."""

from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Protocol

from comity.kernel.call import Call
from comity.kernel.catalog import Offer
from comity.kernel.catalog_access import Standing, Tools
from comity.rules.refusals import Refusal

type GoOn = Callable[[], Coroutine[Any, Any, None]]
"""Sends a call that the gate has let through; raises Unavailable, MalformedMessage."""


class Hold(Protocol):
    """A call that waits for a person."""

    def begin(self, go_on: GoOn, patience: timedelta | None = None) -> None:
        """Have it answered, or sent, when there is an answer; `patience` is the door's own."""
        ...


class Recording(Protocol):
    """Who writes down what calls do, before and after they do it."""

    def intend(
        self, call: Call, offer: Offer, standing: Standing, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Note that a call is about to leave: at once if it is safe, else when that is durable."""
        ...

    def missed(self, call: Call) -> None:
        """It has not left, and begins anew."""
        ...


class LastSteps(Protocol):
    """The part of the call pipeline that an approved call still has before it."""

    @property
    def tools(self) -> Tools | None: ...
    @property
    def recording(self) -> Recording | None: ...

    def intend(
        self, call: Call, offer: Offer, standing: Standing | None, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Record that the call is about to leave."""
        ...
