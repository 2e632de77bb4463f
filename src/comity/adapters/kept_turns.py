"""A turn as any store can keep it: the same check for each of them."""

from dataclasses import replace

from comity.ports.conversations import KeptTurn
from comity.rules import keeping


def checked(turn: KeptTurn) -> KeptTurn:
    """Raises MalformedMessage where it cannot be written down."""
    keeping.name(turn.id, "an inference's id")
    keeping.name(turn.conversation, "a conversation's name")
    keeping.name(turn.cause, "what brings about a turn")
    facts = replace(turn.facts, error=keeping.words(turn.facts.error))
    ended_at = keeping.moment(turn.ended_at)
    thinking = keeping.words(turn.thinking)
    return replace(
        turn, at=keeping.certain(turn.at), facts=facts, ended_at=ended_at, thinking=thinking
    )
