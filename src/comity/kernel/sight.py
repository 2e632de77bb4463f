"""What one actor sees of the catalog: servers as a whole where that can be, else offer by offer."""

from collections.abc import Callable, Collection, Sequence
from itertools import chain

from comity.kernel.catalog import Offer, View
from comity.kernel.grants import Judge
from comity.rules.sight import ALL, Outlook
from comity.wire.grants import Effect
from comity.wire.parties import Actor

type IsUsable = Callable[[Offer], bool]


class Sight:
    """What an actor may use by one verb; and of that, what anybody can use just now."""

    def __init__(
        self, grants: Judge, actor: Actor, verb: str, is_usable: IsUsable | None = None
    ) -> None:
        self._grants = grants
        self._actor = actor
        self._verb = verb
        self._is_usable = is_usable

    @property
    def servers(self) -> Collection[str] | None:
        return self._grants.servers_in_sight(self._actor)

    def outlook(self, server: str) -> Outlook:
        """How far a server is seen, whether or not its offers can be used just now."""
        return self._grants.outlook(self._actor, self._verb, server)

    def over(self, server: str) -> View | None:
        """How a server is looked at; None where nothing of it is seen."""
        outlook = self.outlook(server)
        if not (outlook.all_else or outlook.named or outlook.hopeful):
            return None
        return _View(self, outlook)

    def is_whole(self, server: str) -> bool:
        """Whether everything of a server is seen, so that nothing has to be looked at."""
        return self._is_usable is None and self.outlook(server) == ALL

    def sees(self, offer: Offer) -> bool:
        judged = self._grants.judge(self._actor, self._verb, offer.server, offer.name)
        return judged.effect is not Effect.DENY and self.can_be_used(offer)

    def can_be_used(self, offer: Offer) -> bool:
        return self._is_usable is None or self._is_usable(offer)


class _View:
    def __init__(self, sight: Sight, outlook: Outlook) -> None:
        self._sight = sight
        self._outlook = outlook

    @property
    def only(self) -> Sequence[str] | None:
        outlook = self._outlook
        if outlook.all_else or outlook.hopeful:
            return None
        return tuple(dict.fromkeys(chain.from_iterable(outlook.named)))

    def sees(self, offer: Offer) -> bool:
        outlook = self._outlook
        if outlook.patterned or any(offer.name in names for names in outlook.named):
            return self._sight.sees(offer)
        return outlook.all_else and self._sight.can_be_used(offer)
