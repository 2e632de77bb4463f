"""The grants in force on this node: one snapshot, judged from memory, and how old it may be."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Final, Protocol

from comity.kernel.certainty import Certainty
from comity.rules import sight
from comity.rules.access import BEYOND, Access, Judgement
from comity.rules.sight import Outlook
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Actor

MOST_REMEMBERED: Final = 100_000
LONGEST_REMEMBERED: Final = 256

type Clock = Callable[[], datetime]
type Asked = tuple[str, tuple[tuple[str, str], ...] | None, str, str, str]
"""All of an actor that a judgement depends on, the verb, the server and the name."""


type StillHolds = Callable[[], bool]
"""Whether nothing has changed by which an actor sees what it saw; raises Unavailable."""


class Judge(Protocol):
    """Who says what an actor may do; raises Unavailable where it cannot be known just now."""

    def judge(self, actor: Actor, verb: str, server: str, name: str) -> Judgement: ...

    def knows(self, actor: Actor, server: str) -> bool:
        """Whether anything of a server may be open to this actor, so that it may know of it."""
        ...

    def outlook(self, actor: Actor, verb: str, server: str) -> Outlook:
        """How far this actor sees what a server offers to that verb."""
        ...

    def servers_in_sight(self, actor: Actor) -> Collection[str] | None:
        """The only servers of which this actor may see anything; None where that could be any."""
        ...

    def ground(self, actor: Actor) -> StillHolds:
        """What tells whether all that is judged for this actor is judged as it is now."""
        ...

    def standing_answer(
        self, actor: Actor, server: str, name: str, arguments: object, definition: str = ""
    ) -> Grant | None:
        """The grant by which a call that a person would be asked about goes without; or None.

        `definition` is the digest of the tool's definition; without it only grants that are bound
        to none are found.
        """
        ...


class Grants:
    """The snapshot that every call is judged by; whoever learns of a change replaces it."""

    def __init__(
        self,
        access: Access | None = None,
        clock: Clock = lambda: datetime.now(UTC),
        certainty: Certainty | None = None,
    ) -> None:
        self.latest = access or Access()
        self._judged: dict[Asked, Judgement] = {}
        self._clock = clock
        self._certainty = Certainty() if certainty is None else certainty
        if access is not None:
            self._certainty.confirm(self._certainty.clock())

    @property
    def access(self) -> Access:
        """Raises Unavailable while nothing is known for sure: a node that cannot know denies."""
        self._certainty.demand()
        return self.latest

    def replace(self, access: Access) -> None:
        """Judge by this from now on; whether it is known for sure is another question."""
        self.latest = access
        self._judged = {}

    def judge(self, actor: Actor, verb: str, server: str, name: str) -> Judgement:
        """What follows for this actor; what was allowed once is so until something changes."""
        self._certainty.demand()
        if verb.startswith(actor.excluded):
            return BEYOND
        asked = (actor.party, actor.permissions, verb, server, name)
        return self._judged.get(asked) or self._judge(actor, asked)

    def _judge(self, actor: Actor, asked: Asked) -> Judgement:
        _, _, verb, server, name = asked
        judged = self.latest.judge(actor, verb, server, name, self._clock())
        # Whoever asks for what it may not is free to make up names, and they may be long.
        is_worth_it = judged.effect is not Effect.DENY and len(name) <= LONGEST_REMEMBERED
        if is_worth_it and self.latest.stays(actor, server, name):
            if len(self._judged) >= MOST_REMEMBERED:
                self._judged.clear()
            self._judged[asked] = judged
        return judged

    def knows(self, actor: Actor, server: str) -> bool:
        return sight.knows(self.access, actor, server, self._clock())

    def outlook(self, actor: Actor, verb: str, server: str) -> Outlook:
        return sight.outlook(self.access, actor, verb, server, self._clock())

    def servers_in_sight(self, actor: Actor) -> Collection[str] | None:
        return sight.servers_in_sight(self.access, actor)

    def ground(self, actor: Actor) -> StillHolds:
        basis, ends = sight.ground(self.access, actor, self._clock())

        def still_holds() -> bool:
            if ends is not None and self._clock() >= ends:
                return False
            # The very same: whoever changes an entry puts another in its place.
            now = sight.basis(self.access, actor)
            return all(one is other for one, other in zip(basis, now, strict=True))

        return still_holds

    def standing_answer(
        self, actor: Actor, server: str, name: str, arguments: object, definition: str = ""
    ) -> Grant | None:
        place = (server, name)
        return self.access.standing_answer(actor, place, arguments, definition, self._clock())


class AllowAll:
    """Lets everybody do everything: for a desk that stands behind no door."""

    def judge(self, actor: Actor, verb: str, server: str, name: str) -> Judgement:
        return _ALLOWED

    def knows(self, actor: Actor, server: str) -> bool:
        return True

    def outlook(self, actor: Actor, verb: str, server: str) -> Outlook:
        return sight.ALL

    def servers_in_sight(self, actor: Actor) -> Collection[str] | None:
        return None

    def ground(self, actor: Actor) -> StillHolds:
        return _always

    def standing_answer(
        self, actor: Actor, server: str, name: str, arguments: object, definition: str = ""
    ) -> Grant | None:
        return None


def _always() -> bool:
    return True


_ALLOWED = Judgement(Effect.ALLOW, "nothing is governed")
