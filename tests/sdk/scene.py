"""Who takes part in the tests of the participant, and how they wait for each other."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from comity.sdk.topics.events import Event, MissedEnvelopes, ParticipantEventStream
from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic
from comity.toolkit.resilience import RetrySchedule
from comity.topics.rules import FULL, RESPOND
from tests.sdk.room import Room

QUICK = ParticipantOptions(
    patience=timedelta(seconds=20),
    backoff=RetrySchedule(timedelta(milliseconds=10), timedelta(milliseconds=100)),
)
ANA, BEA, BOT, WORKER = "person:ana@example.org", "person:bea@example.org", "agent:bot", "agent:wk"
LIFETIME = timedelta(minutes=5)
WRITE = {"name": "write", "arguments": {"path": "/srv/a"}}


async def write(path: str) -> str:
    """Write a file."""
    return f"wrote {path}"


@asynccontextmanager
async def everybody(gateway: Room) -> AsyncGenerator[tuple[Participant, Participant, Participant]]:
    """A person who may everything, an agent that may propose, and a worker with a tool."""
    gateway.allowed |= {ANA: FULL, WORKER: RESPOND}
    async with (
        join_topic(gateway.url, "ops", token=WORKER, serves={"write": write}) as worker,
        join_topic(gateway.url, "ops", token=ANA) as ana,
        join_topic(gateway.url, "ops", token=BOT) as bot,
    ):
        yield ana, bot, worker


async def first[E](stream: ParticipantEventStream[E]) -> E | MissedEnvelopes:
    async with asyncio.timeout(20):
        return await anext(stream)


async def until(stream: ParticipantEventStream[Event], kind: type[Event]) -> Event:
    async with asyncio.timeout(20):
        async for event in stream:
            if isinstance(event, kind):
                return event
    raise AssertionError("the stream ended")
