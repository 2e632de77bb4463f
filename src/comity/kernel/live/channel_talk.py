"""People in a topic talk to the model: what they say to its member starts a turn, answered there.

Rule 1: only what names the member is said to it, unless the topic is one where all is.
Rule 2: here the author is a party that the gateway knows, and no testimony.
"""

import logging
from collections.abc import Callable, Sequence

from comity.kernel.chores import Chores
from comity.kernel.live.channel_places import LivePlaces
from comity.kernel.live.mirroring import Mirroring
from comity.kernel.live.parts import Cause, Errand, Origin, Turns
from comity.kernel.seats import Seat
from comity.rules import channels as rules
from comity.rules.channels import Place, Talk
from comity.wire.contents import said
from comity.wire.envelope import Envelope
from comity.wire.errors import MalformedMessage, Unavailable

log = logging.getLogger(__name__)


class Talking:
    """Hears what members say in topics."""

    def __init__(
        self,
        places: LivePlaces,
        mirroring: Mirroring,
        talks: Sequence[Talk],
        turns: Callable[[], Turns | None],
    ) -> None:
        self._places = places
        self._mirroring = mirroring
        self._talks = {each.topic: each for each in talks}
        self._turns = turns
        self._chores = Chores("talk in topics")
        places.ways.topics.heard.append(self.heard)

    def stop(self) -> None:
        self._chores.cancel()

    def heard(self, topic: str, seat: Seat, envelope: Envelope, text: str) -> None:
        self._mirroring.was_said(topic, seat.party, envelope.id, text)
        talk = self._talks.get(topic)
        if talk is None or not text.strip():
            return
        if talk.party in envelope.to or (talk.hears_all and envelope.is_for_all):
            self._chores.start(self._begin(talk, seat, envelope, text))

    async def _begin(self, talk: Talk, seat: Seat, envelope: Envelope, text: str) -> None:
        errand = self._errand(talk, seat, envelope, text)
        try:
            taken = await self._need_turns().begin(errand)
        except (Unavailable, MalformedMessage) as error:
            log.info("no turn for what was said in topic %r: %s", talk.topic, error)
            because = f"the model does not answer: {error}"[:300]
            self._places.ways.topics.tell(talk.topic, seat.party, because, envelope.id)
            return
        self._places.answers(taken.inference, talk.topic, envelope.id, talk.party)

    def _need_turns(self) -> Turns:
        turns = self._turns()
        if turns is None:
            raise Unavailable("nobody takes turns here; an operator can name a model")
        return turns

    def _errand(self, talk: Talk, seat: Seat, envelope: Envelope, text: str) -> Errand:
        place = Place(talk.topic)
        say_in = talk.say_in or (str(place),)
        thread = envelope.correlation_id
        conversation = rules.conversation_in(talk.topic, talk.conversation, thread, seat.party)
        candidates = [rules.place_in(each).shown for each in say_in]
        cause = Cause(
            Origin.TOPIC,
            f"topic:{rules.digest(talk.topic, seat.party, envelope.id)}",
            talk.party,
            channels=rules.channels_context(place, None, say_in, candidates),
        )
        return Errand(cause, conversation, said(text), seat.party, say_in)
