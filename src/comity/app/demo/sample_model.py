"""The sample model of `comity demo`: it answers with fixed texts, after a short time.

It is a plugin of the group `comity.models`, so the demo needs no account and no network.
"""

import asyncio
import itertools
from typing import Final

from comity.inference.messages import FinishReason, ModelInfo, TokenUsage, text_of, to_text_content
from comity.inference.model import (
    ModelCompletion,
    ModelPrompt,
    ModelSpec,
    OnPiece,
    ReplyChunk,
)

DELAYS: Final = (0.4, 1.5, 0.7, 1.0, 0.3)
"""The seconds that replies take, in turn."""

_CHARACTERS_PER_TOKEN: Final = 4
_REPLIES: Final = {
    "refund": "Refund 40 EUR for order A-1042. Write to ana@example.org when it is done.",
    "came back": "Check the item, then propose a refund to the team.",
}
_OTHER_REPLY: Final = "I am a sample model and have no answer to that."


class SampleModel:
    """A model without a provider."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._delays = itertools.cycle(DELAYS)

    @property
    def info(self) -> ModelInfo:
        return self._spec.info

    async def complete(
        self, prompt: ModelPrompt, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        await asyncio.sleep(next(self._delays))
        read = [text_of(prompt.system), *(text_of(step.content) for step in prompt.steps)]
        # The context of servers is before the question, so the last words decide.
        asked = read[-1].splitlines()[-1] if read[-1] else ""
        found = (reply for word, reply in _REPLIES.items() if word in asked)
        reply = next(found, _OTHER_REPLY)
        if on_chunk is not None:
            on_chunk(ReplyChunk(reply))
        usage = TokenUsage(
            sum(map(len, read)) // _CHARACTERS_PER_TOKEN, len(reply) // _CHARACTERS_PER_TOKEN
        )
        return ModelCompletion(to_text_content(reply), FinishReason.END, usage, self._spec.model)

    async def close(self) -> None:
        """Nothing is open."""


def make(spec: ModelSpec) -> SampleModel:
    return SampleModel(spec)
