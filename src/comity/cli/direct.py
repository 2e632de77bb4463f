"""The records of a store, asked without a gateway: the same questions, and the same answers."""

import asyncio
import json
from collections.abc import Iterator, Mapping

from comity.app.recording import administered
from comity.app.retelling import history_of
from comity.cli.asking import Answer
from comity.config import Settings
from comity.surfaces.asked import Asked
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage, Misconfigured
from comity.wire.parties import LOCAL_OPERATOR


def ask(
    settings: Settings,
    method: str,
    place: tuple[str, ...],
    query: Mapping[str, str],
    body: Mapping[str, object],
) -> Answer:
    """Whoever may open the store is its operator. Raises Misconfigured, Unavailable."""
    # As it would come over a wire, so that both ways take and give the same.
    said = json.loads(json.dumps(body))

    async def answered() -> bytes:
        async with administered(settings) as rooms:
            asked = Asked(method, place[1:], query, said, LOCAL_OPERATOR)
            return bytes(jsonrpc.to_raw(await rooms[place[0]](asked)))

    try:
        return json.loads(asyncio.run(answered()))
    except MalformedMessage as refused:
        raise Misconfigured(str(refused)) from None


def export(settings: Settings) -> Iterator[bytes]:
    """Every line of the exported journal of a store. Raises Misconfigured, Unavailable."""
    with asyncio.Runner() as runner:
        opened = history_of(settings)
        history = runner.run(opened.__aenter__())
        try:
            place = None
            while True:
                part = runner.run(history.part(place))
                yield from part.lines
                if part.next is None:
                    return
                place = part.next
        finally:
            runner.run(opened.__aexit__(None, None, None))
