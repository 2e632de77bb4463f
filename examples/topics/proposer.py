"""A proposer: an agent that may not act, and says what it would have done.

python examples/topics/proposer.py PATH TEXT [URL]
"""

import asyncio
import sys
from typing import Any

from comity.errors import Unavailable
from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic

TOPIC = "ops"
URL = "http://localhost:2664"
WORKER = "local:worker"


def joined(url: str):
    return join_topic(url, TOPIC, options=ParticipantOptions(alias="proposer"))


async def write(me: Participant, path: str, text: str) -> str:
    """Ask for a file to be written. We may not, so it is proposed; the answer is the same."""
    params = {"name": "write_file", "arguments": {"path": path, "text": text}}
    result: Any = await me.request("tools/call", params, to=WORKER)
    return str(result["content"][0]["text"])


async def main(path: str, text: str, url: str = URL) -> None:
    async with joined(url) as me:
        try:
            print(await write(me, path, text))
        except Unavailable as problem:
            print(f"not done: {problem}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
