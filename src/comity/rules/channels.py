"""Which channels a server may use, where what comes from them goes, and what conversation it is.

Rule 1: the feature sets that the operator enabled decide: `channels.publish` for words out,
        `channels.observe` for words in and for watching, either for the rest. (D-64)
Rule 2: each channel is judged by itself. What any of those sets forbids is forbidden; otherwise
        one of them has to let it be. (MCPL §14.5)
Rule 3: another server's words are seen only by who was told of them by name, and thoughts only by
        a set that was granted by name. Nobody says anything among thoughts. (D-71, D-73)
Rule 4: who wrote a message is testimony of its server. It is no party here.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from comity.rules.globs import matches
from comity.rules.safe_text import safe
from comity.rules.scopes import is_allowed, is_denied
from comity.rules.topics import is_topic
from comity.wire.channels import THINKING, Descriptor, Direction, Incoming
from comity.wire.errors import (
    CHANNEL_UNKNOWN,
    FEATURE_NOT_ENABLED,
    INVALID_PARAMS,
    SCOPE_NOT_PERMITTED,
    Fault,
    MalformedMessage,
)
from comity.wire.features import Bounds, FeatureSet, Use

TOPIC: Final = "topic:"
CHANNEL: Final = "channel:"
HOST: Final = "agent:host"
"""Who says in topics what the gateway's model says, and in whose name it uses tools."""

EITHER: Final = (Use.PUBLISH, Use.OBSERVE)
_LONGEST_READABLE: Final = 120
_LONGEST_AUTHOR: Final = 80


class Goal(StrEnum):
    """What is done with a message from outside, beside what a topic is given of it."""

    NOTHING = "nothing"
    TURN = "turn"


class Grouping(StrEnum):
    """Which messages of a channel are one conversation."""

    CHANNEL = "channel"
    THREAD = "thread"
    AUTHOR = "author"


@dataclass(frozen=True, slots=True)
class Route:
    """What an operator has decided of some channels of a server.

    `to` is a goal, or the place `topic:NAME`. Without `say_in` a model answers where it was asked.
    `mirror` is a topic that is to be the same as the channel. `repeats` is for connectors that know
    a publication by its id; one that does not acknowledge is only told.
    """

    server: str
    channel: str = "**"
    to: str = Goal.TURN
    conversation: Grouping = Grouping.CHANNEL
    say_in: tuple[str, ...] = ()
    mirror: str = ""
    party: str = HOST
    per_minute: int = 60
    repeats: bool = False
    acknowledges: bool = True


@dataclass(frozen=True, slots=True)
class Talk:
    """What an operator has decided of talk in a topic: whether a model answers, and what."""

    topic: str
    hears_all: bool = False
    conversation: Grouping = Grouping.CHANNEL
    say_in: tuple[str, ...] = ()
    party: str = HOST


@dataclass(frozen=True, slots=True)
class Place:
    """Where words go: a topic, or a channel of a server."""

    id: str
    server: str = ""

    @property
    def is_topic(self) -> bool:
        return not self.server

    def __str__(self) -> str:
        return f"{TOPIC}{self.id}" if self.is_topic else f"{CHANNEL}{self.server}/{self.id}"

    @property
    def shown(self) -> str:
        """As servers other than its own know it."""
        return f"{TOPIC}{self.id}" if self.is_topic else f"{self.server}/{self.id}"


def place_in(text: str) -> Place:
    """`topic:NAME` or `channel:SERVER/ID`. Raises MalformedMessage."""
    if text.startswith(TOPIC) and is_topic(text.removeprefix(TOPIC)):
        return Place(text.removeprefix(TOPIC))
    server, slash, id = text.removeprefix(CHANNEL).partition("/")
    if text.startswith(CHANNEL) and server and slash and id:
        return Place(id, server)
    raise MalformedMessage(
        f"{text!r:.80} is no place; write topic:NAME or channel:SERVER/ID", INVALID_PARAMS
    )


# Who may do what


def require(sets: Iterable[FeatureSet], *uses: Use) -> list[FeatureSet]:
    """The enabled sets by which a server may; raises where there is none. (D-64)"""
    found = [each for each in sets if any(use in each.uses for use in uses)]
    if not found:
        wanted = " or ".join(uses)
        raise MalformedMessage(f"no enabled feature set uses {wanted}", FEATURE_NOT_ENABLED)
    return found


def why_not(
    channel: str, sets: Iterable[FeatureSet], bounds: Mapping[str, Bounds]
) -> tuple[Fault, str] | None:
    """Why a server may not use a channel of its own by these sets; None where it may."""
    if channel == THINKING:
        return SCOPE_NOT_PERMITTED, "thinking can be watched, and nothing else"
    found = [bounds.get(each.name, _ANY) for each in sets]
    if is_denied(channel, _blacklisted(found)):
        return SCOPE_NOT_PERMITTED, "the channel is among those that the host forbids"
    if not any(_is_let(each, channel) for each in found):
        return SCOPE_NOT_PERMITTED, "the channel is not among those that the host allows"
    return None


_ANY: Final = Bounds()


def _is_let(bounds: Bounds, channel: str) -> bool:
    """A set without a whitelist was enabled for whatever channels its server has."""
    return not bounds.whitelist or is_allowed(channel, bounds.whitelist)


def _blacklisted(several: Iterable[Bounds]) -> list[str]:
    return [pattern for each in several for pattern in each.blacklist]


def why_not_towards(
    channel: Descriptor | None, *, is_out: bool, is_closed: bool
) -> tuple[Fault, str] | None:
    """Why words may not go this way, whoever would send them."""
    if channel is None:
        return CHANNEL_UNKNOWN, "there is no such channel"
    if is_closed:
        return CHANNEL_UNKNOWN, "the channel is closed"
    if channel.direction is (Direction.IN if is_out else Direction.OUT):
        return SCOPE_NOT_PERMITTED, f"the channel is {channel.direction}"
    return None


def sees(
    place: Place, server: str, sets: Iterable[FeatureSet], bounds: Mapping[str, Bounds]
) -> bool:
    """Whether a server may watch what is said at a place: its own channel, or one told by name."""
    observing = [each for each in sets if Use.OBSERVE in each.uses and not _is_thinking(each)]
    if not observing:
        return False
    if place.server == server and server:
        return why_not(place.id, observing, bounds) is None
    found = [bounds.get(each.name, _ANY) for each in observing]
    if is_denied(place.shown, _blacklisted(found)):
        return False
    return any(is_allowed(place.shown, each.whitelist) for each in found)


def sees_thoughts(
    sets: Iterable[FeatureSet], named: Iterable[str], bounds: Mapping[str, Bounds]
) -> bool:
    """Whether a server may watch the model think: a wildcard grants that to nobody."""
    written = frozenset(named)
    for each in sets:
        said = bounds.get(each.name, _ANY)
        is_granted = (_is_thinking(each) and each.name in written) or THINKING in said.whitelist
        if Use.OBSERVE in each.uses and is_granted and THINKING not in said.blacklist:
            return True
    return False


def _is_thinking(feature: FeatureSet) -> bool:
    return feature.name.rpartition(".")[2] == THINKING


# Where it goes


def route_of(routes: Iterable[Route], server: str, channel: str) -> Route | None:
    """The first that is about this channel; without one nothing is done with what comes in."""
    mine = (each for each in routes if each.server == server)
    return next((each for each in mine if matches(each.channel, channel)), None)


def conversation_of(server: str, message: Incoming, by: Grouping) -> str:
    """The name of the conversation that a message belongs to: the same for the same, for good."""
    part = {Grouping.THREAD: message.thread, Grouping.AUTHOR: message.author_id}.get(by, "")
    return _named(f"{CHANNEL}{server}/{message.channel}", f"{by}:{part}" if part else "")


def conversation_in(topic: str, by: Grouping, thread: str, author: str) -> str:
    part = {Grouping.THREAD: thread, Grouping.AUTHOR: author}.get(by, "")
    return _named(f"{TOPIC}{topic}", f"{by}:{part}" if part else "")


def _named(whole: str, part: str) -> str:
    """What can be read is left as it is; of what is long or strange a digest stands for it."""
    text = f"{whole}#{part}" if part else whole
    if len(text) <= _LONGEST_READABLE and text.isascii() and text.isprintable():
        return text
    return f"{whole.partition(':')[0]}:{digest(whole, part)}"


def digest(*names: str) -> str:
    """One name for several, which no others have."""
    named = "".join(f"{len(each)}:{each}" for each in names)
    return hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()[:40]


def message_key(server: str, channel: str, message: str) -> str:
    """By what one message of one channel is known for good. (D-72)"""
    return f"in:{digest(server, channel, message)}"


def saying_key(inference: str, place: Place) -> str:
    """By what one saying of one turn at one place is known for good."""
    return f"out:{digest(inference, str(place))}"


# How it is shown


def author_of(message: Incoming) -> str:
    """Who is said to have written it; never anybody's name here."""
    said = safe(message.author or message.author_id or "somebody").replace("\n", " ").strip()
    return said[:_LONGEST_AUTHOR] or "somebody"


def attributed(server: str, message: Incoming) -> str:
    """The same for a model: it is to know that only a server says so."""
    where = safe(f"{server}/{message.channel}")[:_LONGEST_READABLE]
    return f"{author_of(message)} (outside, as {where} says)"


def channels_context(
    place: Place, message: Incoming | None, say_in: Iterable[str], candidates: Iterable[str]
) -> dict[str, object]:
    """What servers may know of where a turn came from and where its answer goes. (§14.4)"""
    goes = [place_in(each) for each in say_in]
    told: dict[str, object] = {"candidates": list(candidates)}
    if message is not None:
        incoming = {"channelId": message.channel, "messageId": message.id}
        told["incoming"] = {**incoming, **({"threadId": message.thread} if message.thread else {})}
    else:
        told["incoming"] = {"channelId": str(place)}
    if goes:
        first = goes[0]
        same = first == place and not place.is_topic
        told["defaultOutgoing"] = {"channelId": first.id if same else first.shown}
    return told


class Veil:
    """Words of one turn on their way to observers: no secret is shown for being cut in two.

    The last words are held back, and all of a key that has begun and not ended.
    """

    HELD: Final = 256
    _BEGINS: Final = "-----BEGIN"
    _ENDS: Final = "-----END"

    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._kept = ""

    def add(self, delta: str) -> str:
        """What can be shown by now."""
        self._kept += delta
        upto = self._kept.rfind(" ", 0, max(len(self._kept) - self.HELD, 0)) + 1
        begun = self._kept.find(self._BEGINS)
        if begun >= 0 and self._ENDS not in self._kept[begun:]:
            upto = min(upto, begun)
        shown = self._hide(self._kept[:upto])
        if not upto or not self._hide(self._kept).startswith(shown):
            return ""
        self._kept = self._kept[upto:]
        return shown

    def end(self) -> str:
        """The rest."""
        rest, self._kept = self._hide(self._kept), ""
        return rest
