"""Errands as they are kept, and as they are read again by whoever takes the turn."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from comity.kernel.live.parts import Cause, Errand, Origin
from comity.ports.conversations import KeptTurn
from comity.rules import keeping, turns
from comity.wire import jsonrpc


def kept(errand: Errand, inference: str, at: datetime, most: int) -> KeptTurn:
    """The turn that it would have; of what is to be answered no more than so much."""
    content = turns.cut(errand.content, most)
    name = key_of(errand.cause.key)
    return KeptTurn(inference, name, errand.conversation, _document(errand), content, at)


def key_of(cause: str) -> str:
    """A cause by a name that every store can keep."""
    if keeping.is_name(cause):
        return cause
    return "sha256:" + hashlib.sha256(cause.encode(errors="surrogatepass")).hexdigest()


def errand_of(turn: KeptTurn) -> Errand:
    found = dict(turn.errand)
    cause = Cause(
        Origin(found["origin"]),
        turn.cause,
        found["party"],
        found["server"],
        found["feature"],
        found["depth"],
        found["channels"],
    )
    say_in = tuple(found["say_in"])
    return Errand(cause, turn.conversation, turn.content, found["author"], say_in)


def _document(errand: Errand) -> Mapping[str, Any]:
    cause = errand.cause
    document: dict[str, Any] = {
        "origin": str(cause.origin),
        "party": cause.party,
        "server": cause.server,
        "feature": cause.feature,
        "depth": cause.depth,
        "channels": dict(cause.channels),
        "author": errand.author,
        "say_in": list(errand.say_in),
    }
    # As it will be read: what is no JSON fails here, and not when the turn is taken.
    found: Mapping[str, Any] = jsonrpc.value(jsonrpc.to_raw(document))  # pyright: ignore[reportAssignmentType]
    return found
