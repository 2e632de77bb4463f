"""A live server made with the kit, of everything that there is: on pipes, or on a port."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from comity.sdk.server import (
    ChannelDescriptor,
    ChannelOutput,
    FeatureUse,
    Injection,
    InjectionPosition,
    Message,
    Post,
    ScopeClaim,
    Security,
    Server,
    Turn,
)

SAFE = Security("safe")
seen: list[dict[str, Any]] = []
server = Server("kit", version="1")
memory = server.feature("kit.memory", "Adds to what a model reads")
guard = server.feature("kit.guard", "Changes what a model said")
learner = server.feature("kit.learner", "Learns from what was said")
pushing = server.feature("kit.push", "Tells of events", uses=[FeatureUse.PUSH])
thinking = server.feature("kit.think", "Asks a model", uses=[FeatureUse.INFERENCE])
notes = server.feature("kit.notes", "Keeps notes", rollback=True, initial={"notes": []})
files = server.feature("kit.files", "Reaches files", scoped=True)
off = server.feature("kit.off", "Is never enabled", uses=[FeatureUse.PUSH, FeatureUse.INFERENCE])
server.feature("kit.say", "Says something outside", uses=[FeatureUse.PUBLISH])
server.feature("kit.hear", "Hears what is said outside", uses=[FeatureUse.OBSERVE])
LOBBY = ChannelDescriptor("kit:#lobby", "kit", "The lobby")


def note(kind: str, **what: Any) -> None:
    seen.append({"kind": kind, **what})


@memory.before_inference
async def recall(turn: Turn) -> list[Injection]:
    note("before", user=turn.user, conversation=turn.conversation, inference=turn.inference)
    return [
        Injection("The kit remembers tea.", metadata={"memoryIds": ["m1"]}),
        Injection("The kit is at hand.", InjectionPosition.SYSTEM),
    ]


@guard.after_inference(blocking=True)
async def redact(turn: Turn) -> str | None:
    note("after", answer=turn.answer, inference=turn.inference, tokens=turn.usage.output)
    return turn.answer.replace("sk-1", "[REDACTED]") if turn.answer else None


@learner.after_inference
async def learn(turn: Turn) -> None:
    note("learned", answer=turn.answer)
    server.afterwards(consolidate, turn.answer or "")


async def consolidate(text: str) -> None:
    if "consolidate" in text:
        note("consolidated", text=(await thinking.infer(f"Sum up: {text}")).text)


@server.tool(SAFE)
async def look(kind: str) -> dict[str, Any]:
    """What was seen of one kind; and which sets are enabled."""
    enabled = sorted(name for name, each in server.live.sets.items() if each.is_enabled)
    return {"seen": [each for each in seen if each["kind"] == kind], "enabled": enabled}


@server.tool(SAFE)
async def push(event: str, text: str, by: str = "kit.push") -> dict[str, Any]:
    """Push an event."""
    origin = {"server": "kit"}
    return dataclasses.asdict(await server.live.sets[by].push(event, text, origin=origin))


@server.tool(SAFE)
async def think(text: str, stream: bool = False, by: str = "kit.think") -> dict[str, Any]:
    """Ask a model."""
    pieces: list[str] = []
    on_piece = pieces.append if stream else None
    feature = server.live.sets[by]
    reply = await feature.infer([text], max_tokens=200, temperature=0.5, on_piece=on_piece)
    return {"text": reply.text, "model": reply.model, "finish": reply.finish, "pieces": pieces}


@server.tool(SAFE)
async def model() -> dict[str, Any]:
    """Which model there is."""
    return dataclasses.asdict(await server.model())


@notes.tool(SAFE)
async def add_note(text: str) -> int:
    """Keep a note."""
    notes.state.data["notes"].append(text)
    return len(notes.state.data["notes"])


@notes.on_rollback
async def rolled_back(checkpoint: str) -> None:
    note("rollback", checkpoint=checkpoint)


@files.tool(SAFE)
async def reach(path: str, beyond: str) -> dict[str, Any]:
    """Reach for a path, and beyond."""
    asked = await files.elevate(ScopeClaim(beyond, {"path": beyond}))
    scope = None if files.scope is None else files.scope.label
    return {**dataclasses.asdict(asked), "scope": scope}


@server.tool(SAFE)
async def grow() -> str:
    """Have another set, and one less."""
    server.feature("kit.grown", "Came later", uses=[FeatureUse.PUSH])
    server.drop("kit.off")
    await server.announce()
    return "grown"


@server.tool(SAFE)
async def hear(id: str, text: str) -> list[dict[str, Any]]:
    """Bring in a message."""
    came = Message(LOBBY.id, id, text, "A visitor", "u_1", "t_1", metadata={"n": 1})
    return [dataclasses.asdict(each) for each in await server.channels.incoming(came)]


@server.tool(SAFE)
async def channels(add: str = "") -> list[str]:
    """Register one more, and list them as the host knows them."""
    if add:
        await server.channels.register(ChannelDescriptor(add, "kit"))
    return [each.id for each in await server.channels.listed()]


@server.channels.on_publish
async def deliver(post: Post) -> str:
    note("post", channel=post.channel.id, text=post.text, id=post.id)
    return f"out-{len(seen)}"


@server.channels.on_outgoing
async def observe(outgoing: ChannelOutput) -> None:
    note("outgoing", channel=outgoing.channel, whole=outgoing.is_complete, delta=outgoing.delta)


@server.channels.on_open
async def connect(type: str, address: Mapping[str, Any]) -> ChannelDescriptor | None:
    name = address.get("channel")
    return ChannelDescriptor(f"kit:{name}", type, address=dict(address)) if name else None


@server.channels.on_close
async def leave(channel: str) -> None:
    note("closed", channel=channel)


@server.background
async def begin() -> None:
    await server.channels.register(LOBBY)


if __name__ == "__main__":
    server.run(int(sys.argv[1]) if len(sys.argv) > 1 else None)
