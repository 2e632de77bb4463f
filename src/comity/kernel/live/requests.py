"""What live servers ask of a model, answered by the engine and told while it comes. (MCPL §11)

Rule 1: who asks pays: the server, as the party `server:ID`. (§13.1)
Rule 2: who is just asked about a turn asks no model for it. (§10.7, D-69)
Rule 3: words go to a server in their order, all before the whole; one that takes them slowly gets
        them in fewer pieces, and holds up nobody. (§11.4)
Rule 4: which model there is, is always answered, with an error if there is none. (D-70)
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final, Self

from comity.kernel.live.hook_watch import HookWatch
from comity.kernel.live.hosting import Hosting, Told
from comity.kernel.live.parts import Engine, Inferring
from comity.ports.models import Piece, Prompt, Step
from comity.rules.permissions import SUBJECT
from comity.wire import inference, jsonrpc
from comity.wire.contents import text_of
from comity.wire.errors import EXHAUSTED, HOOK_LOOP, MalformedMessage, Unavailable
from comity.wire.features import Use
from comity.wire.inference import USUAL_TOKENS, Wanted

MOST_AT_ONCE: Final = 32
"""Of one server: more would be a flood, whatever its budget."""

_LONGEST_NAME: Final = 500


class Requests:
    """Answers servers' requests for a model."""

    def __init__(self, engine: Engine, hooks: HookWatch) -> None:
        self._engine = engine
        self._hooks = hooks
        self._underway: dict[str, int] = {}

    def join(self, hosting: Hosting) -> None:
        hosting.add(inference.REQUEST, self.request, Use.INFERENCE)
        hosting.add(inference.MODEL, self.model)

    async def model(self, told: Told) -> Mapping[str, object]:
        return self._engine.info(told.by.server).on_wire()

    async def request(self, told: Told) -> Mapping[str, object]:
        wanted = inference.wanted_in(told.params)
        server = told.by.server
        if self._hooks.is_pending(server, wanted.conversation):
            raise MalformedMessage("no model is asked from within a hook", HOOK_LOOP)
        if self._underway.get(server, 0) >= MOST_AT_ONCE:
            raise Unavailable(f"{MOST_AT_ONCE} requests are under way already", EXHAUSTED)
        self._underway[server] = self._underway.get(server, 0) + 1
        try:
            return await self._answered(told, wanted)
        finally:
            self._underway[server] -= 1
            if not self._underway[server]:
                del self._underway[server]

    async def _answered(self, told: Told, wanted: Wanted) -> Mapping[str, object]:
        asked = _asked(told, wanted)
        if not wanted.stream or told.id is None:
            reply = await self._engine.infer(asked)
        else:
            async with Chunks(told) as chunks:
                reply = await self._engine.infer(asked, chunks.take)
        return inference.answered(text_of(reply.content), reply.model, reply.finish, reply.usage)


class Chunks:
    """Words on their way to one server; leaving waits until it has them all."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._waiting: list[str] = []
        self._stirred = asyncio.Event()
        self._is_over = False
        self._index = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            return
        self._is_over = True
        self._stirred.set()
        try:
            # Each piece is told within a bound of its own, and there is one at the most by now.
            await self._task
        finally:
            self._task.cancel()

    def take(self, piece: Piece) -> None:
        if not piece.is_thinking:
            self._waiting.append(piece.text)
            self._stirred.set()

    async def _send(self) -> None:
        while not (self._is_over and not self._waiting):
            await self._stirred.wait()
            self._stirred.clear()
            delta = "".join(self._waiting)
            self._waiting.clear()
            if delta:
                await self._tell(delta)

    async def _tell(self, delta: str) -> None:
        told = self._told
        assert told.id is not None
        chunk = inference.chunk(told.id, self._index, delta)
        self._index += 1
        if told.link is not None and not told.by.is_modern:
            # On the very link on which it was asked: another one's ids are others.
            told.link.tell(jsonrpc.notification(inference.CHUNK, chunk))
        else:
            await told.by.tell(inference.CHUNK, chunk)


def _asked(told: Told, wanted: Wanted) -> Inferring:
    steps = tuple(Step(each.role, each.content) for each in wanted.messages)
    limit = USUAL_TOKENS if wanted.max_tokens is None else wanted.max_tokens
    prompt = Prompt(steps, max_tokens=limit, temperature=wanted.temperature)
    return Inferring(
        prompt,
        SUBJECT + told.by.server,
        f"inf_{secrets.token_hex(12)}",
        told.by.server,
        wanted.feature,
        wanted.conversation[:_LONGEST_NAME],
        wanted.hints,
    )
