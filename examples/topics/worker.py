"""A worker: a member of a topic that has one tool, and writes files where it may.

python examples/topics/worker.py [URL] [FOLDER]
"""

import asyncio
import sys
from pathlib import Path

from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic

TOPIC = "ops"
URL = "http://localhost:2664"


def written(folder: Path, path: str, text: str) -> str:
    place = (folder / path.lstrip("/")).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is not mine to write")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    return f"wrote {len(text)} characters to {path}"


def joined(url: str, folder: Path):
    """The worker as a member; requests that are addressed to it are answered by its tool."""

    async def write_file(path: str, text: str) -> str:
        """Write a text into a file."""
        return await asyncio.to_thread(written, folder, path, text)

    tools = {"write_file": write_file}
    return join_topic(url, TOPIC, serves=tools, options=ParticipantOptions(alias="worker"))


async def main(url: str, folder: Path) -> None:
    async with joined(url, folder) as me:
        print(f"{me.id} is in {TOPIC}, and writes into {folder}")
        await stay(me)


async def stay(me: Participant) -> None:
    """Until the gateway ends the membership, or somebody interrupts."""
    async for _ in me:
        pass


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(given[0] if given else URL, Path(given[1] if given[1:] else ".")))
