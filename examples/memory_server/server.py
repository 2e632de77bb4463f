"""A memory for every conversation: MCPL §15.1, over a SQLite file.

    python server.py memories.db [--position system] [--apart]

What people state is learned after each turn, what has to do with a question is put before the model
that answers it, many memories of one conversation are summed up by the host's own model, and what
somebody wants to be reminded of is pushed when its time has come.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from memories import Memories, Memory

from comity.sdk.server import (
    Feature,
    FeatureUse,
    HostRefusal,
    HostRequestFailure,
    HostUnavailable,
    Injection,
    InjectionPosition,
    Server,
    Turn,
)

log = logging.getLogger("memory")

LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 30.0
MANY: Final = 12
"""So many memories of one conversation are summed up."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where memories stand in a prompt, and whether each conversation has its own."""

    position: InjectionPosition = InjectionPosition.BEFORE_USER
    apart: bool = False
    many: int = MANY


def memory_server(memories: Memories, options: Options | None = None) -> Server:
    chosen = options or Options()
    server = Server("memory")
    _retrieve(server, memories, chosen)
    _extract(server, memories, chosen)
    _remind(server, memories)

    @server.tool()
    async def recall(about: str) -> list[str]:
        """What is remembered about something."""
        return [f"{each.id}: {each.text}" for each in memories.about(about)]

    @server.tool()
    async def forget(id: str) -> str:
        """Forget one memory for good."""
        return "forgotten" if memories.forget(id) else "there is no such memory"

    return server


def _retrieve(server: Server, memories: Memories, options: Options) -> None:
    retrieval = server.feature("memory.retrieval", "Recalls what was said before")

    @retrieval.before_inference
    async def retrieve(turn: Turn) -> Injection | None:
        within = turn.conversation if options.apart else None
        found = memories.about(turn.user or "", within)
        if not found:
            return None
        lines = "\n".join(each.text for each in found)
        metadata = {"memoryIds": [each.id for each in found]}
        return Injection(f"<memories>\n{lines}\n</memories>", options.position, metadata=metadata)


def _extract(server: Server, memories: Memories, options: Options) -> None:
    extraction = server.feature("memory.extraction", "Remembers what is said")
    consolidation = server.feature(
        "memory.consolidation", "Sums memories up with a model", uses=[FeatureUse.INFERENCE]
    )
    busy = asyncio.Lock()

    @extraction.after_inference
    async def extract(turn: Turn) -> None:
        # What the model said is left out: it may have it from here.
        memories.learn(turn.user or "", turn.conversation, datetime.now(UTC))
        # Not within the hook: its host waits for nothing that asks a model. (§10.7)
        server.afterwards(consolidate, turn.conversation)

    async def consolidate(conversation: str) -> None:
        async with busy:
            found = memories.unfolded(conversation)
            if len(found) < options.many or not consolidation.is_enabled:
                return
            try:
                summary = await _summed_up(consolidation, found, conversation)
            except (HostUnavailable, HostRequestFailure, HostRefusal) as problem:
                log.warning("memories stay as they are: %s", problem)
                return
            if summary:
                memories.fold(summary, found, conversation, datetime.now(UTC))


async def _summed_up(consolidation: Feature, found: Sequence[Memory], conversation: str) -> str:
    listed = "\n".join(f"- {each.text}" for each in found)
    asked = f"Summarize these memories in one or two sentences, as facts:\n{listed}"
    reply = await consolidation.infer(asked, conversation=conversation, max_tokens=500)
    return reply.text.strip()


def _remind(server: Server, memories: Memories) -> None:
    proactive = server.feature(
        "memory.proactive", "Reminds when it is time", uses=[FeatureUse.PUSH]
    )

    @server.background
    async def remind() -> None:
        while True:
            await proactive.enabled()
            missed = 0
            for each in memories.due(datetime.now(UTC)):
                origin = {"server": "memory", "memoryId": each.id}
                # By its id it is one event, however often it is pushed.
                text = f"You wanted to be reminded: {each.text}"
                pushed = await proactive.push(f"evt_{each.id}", text, origin=origin, at=each.due)
                if pushed.is_taken:
                    memories.told(each.id)
                else:
                    missed += 1
                    log.warning("reminder %s was not taken: %s", each.id, pushed.reason)
            await asyncio.sleep(AGAIN_SECONDS if missed else LOOK_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description="A memory for every conversation.")
    parser.add_argument("file", help="where memories are kept")
    parser.add_argument(
        "--position", choices=[*InjectionPosition], default=InjectionPosition.BEFORE_USER
    )
    parser.add_argument("--apart", action="store_true", help="a memory for each conversation")
    given = parser.parse_args()
    # Standard output is the protocol's.
    logging.basicConfig(stream=sys.stderr)
    options = Options(InjectionPosition(given.position), given.apart)
    memory_server(Memories(given.file), options).run()


if __name__ == "__main__":
    main()
