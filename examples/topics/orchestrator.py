"""An orchestrator: fulfils what people approve, learns from it, and later does it by itself.

python examples/topics/orchestrator.py [URL]

Say in the topic `approve ID` or `decline ID` to a proposal, `always RULE` to a rule it suggests.
"""

import asyncio
import sys

from comity.sdk.topics.orchestrator import Orchestrator, OrchestratorLimits, RuleLearner
from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic

TOPIC = "ops"
URL = "http://localhost:2664"
WORKER = "local:worker"
PEOPLE = ("local:ana",)


def joined(url: str):
    return join_topic(url, TOPIC, options=ParticipantOptions(alias="orchestrator"))


def made(me: Participant) -> Orchestrator:
    """It fulfils calls of tools alone, ten in a minute at most, and hears nobody but `PEOPLE`."""
    bounds = OrchestratorLimits(methods=("tools/call",), contexts=("write_*",), per_minute=10)
    return Orchestrator(me, WORKER, PEOPLE, learning=RuleLearner(bounds))


async def main(url: str) -> None:
    async with joined(url) as me:
        print(f"{me.id} is in {TOPIC}, and listens to {', '.join(PEOPLE)}")
        await made(me).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2] or [URL]))
