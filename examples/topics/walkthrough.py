"""Delegated fulfilment, from the first approval to a rule: MCPx §9.4, as the person sees it.

python examples/topics/walkthrough.py [URL]
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import orchestrator
import proposer
import worker

from comity.sdk.topics.events import (
    Chat,
    Event,
    ParticipantEventStream,
    Presence,
    Proposal,
    Request,
    Response,
)
from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic

TOPIC = "ops"
URL = "http://localhost:2664"
DAYS = ("monday", "tuesday", "wednesday")


class Person:
    """Ana, who reads all that is said and types what she decides."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        self._events: ParticipantEventStream[Event] = me.events()

    async def says(self, text: str) -> None:
        print(f"ana> {text}")
        await self._me.chat(text)

    async def reads(self, until: str) -> str:
        """Show what comes, up to a line that holds these words; gives that line."""
        async with asyncio.timeout(60):
            async for event in self._events:
                line = shown(event)
                if line:
                    print(line)
                if line and until in line:
                    return line
        raise RuntimeError("the gateway ended the membership")


def shown(event: object) -> str:
    match event:
        case Presence() if event.id != "local:ana":
            return f"     {event.id} {'joined' if event.has_come else 'left'}"
        case Chat():
            return f"     {event.sender}: {event.text}"
        case Proposal():
            return f"     {event.sender} PROPOSES {event.id[:8]} {of(event.params)}"
        case Request():
            return f"     {event.sender} asks {event.to[0]} for {event.correlation_id[:8]}"
        case Response():
            return f"     {event.sender} answers {' and '.join(event.to)}"
        case _:
            return ""


def of(params: object) -> str:
    said = json.loads(json.dumps(params))
    return f"{said['name']}({said['arguments']['path']})"


async def taught(ana: Person, agent: Participant) -> None:
    """Three days of the same, each approved by a word."""
    for day in DAYS:
        wanted = asyncio.create_task(proposer.write(agent, f"/reports/{day}.txt", "all is well"))
        line = await ana.reads("say `approve")
        await ana.says(f"approve {line.partition('`approve ')[2][:8]}")
        await ana.reads("(approved by")
        print(f"bot> {await wanted}")


async def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with join_topic(url, TOPIC, options=ParticipantOptions(alias="ana")) as me:
            ana = Person(me)
            async with (
                worker.joined(url, Path(folder)),
                orchestrator.joined(url) as chief,
                proposer.joined(url) as agent,
            ):
                working = asyncio.create_task(orchestrator.made(chief).run())
                await taught(ana, agent)
                line = await ana.reads("say `always")
                await ana.says(f"always {line.partition('`always ')[2][:8]}")
                await ana.reads("is in force")
                done = asyncio.create_task(
                    proposer.write(agent, "/reports/thursday.txt", "all is well")
                )
                await ana.reads("by rule")
                print(f"bot> {await done}")
                other = asyncio.create_task(proposer.write(agent, "/keys/root.txt", "let me in"))
                line = await ana.reads("say `approve")
                await ana.says(f"decline {line.partition('`approve ')[2][:8]}")
                await ana.reads("declined")
                other.cancel()
                working.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or [URL]))
