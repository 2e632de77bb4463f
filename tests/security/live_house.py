"""A house with live servers that say what they are told to, a model, and a gateway before them."""

import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from tests.interop.peers import ROOT
from tests.interop.processes import comity
from tests.live.end_to_end import KEY, Models, Stage
from tests.live.talker_scene import Frame, Scene

EVERY_USE: Final = (
    "pushEvents",
    "contextHooks.beforeInference",
    "contextHooks.afterInference",
    "inferenceRequest",
    "channels.publish",
    "channels.observe",
)
MODEL: Final = """
[[models]]
id = "main"
api = "openai"
url = "{url}/v1"
key_env = "MODEL_KEY"
"""


def a_set(*uses: str, **more: object) -> dict[str, object]:
    return {"description": "Harmless", "uses": list(uses), **more}


def declared(**sets: object) -> dict[str, object]:
    named = {name.replace("_", "."): each for name, each in sets.items()}
    return {
        "version": "0.4",
        "pushEvents": True,
        "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
        "inferenceRequest": {"streaming": True},
        "modelInfo": True,
        "channels": {"register": True, "publish": True, "observe": True, "lifecycle": True},
        "featureSets": named,
    }


def talker(id: str, mcpl: Mapping[str, object], live: str, tools: object = ()) -> str:
    """A server that asks its host whatever it is told to."""
    env = {"MCPL": json.dumps(mcpl), "TOOLS": json.dumps(tools)}
    return _server(id, "tests.live.live_talker", env, live)


def player(id: str, play: Mapping[str, object], live: str) -> str:
    """A server that answers hooks with whatever it is told to."""
    return _server(id, "tests.live.hook_server", {"HOOK_PLAY": json.dumps(play)}, live)


def _server(id: str, module: str, env: Mapping[str, str], live: str) -> str:
    given = ", ".join(f"{name} = {json.dumps(each)}" for name, each in env.items())
    return f"""
[[servers]]
id = "{id}"
command = {json.dumps(sys.executable)}
args = ["-m", "{module}"]
env = {{ {given}, PYTHONPATH = {json.dumps(str(ROOT))} }}
[servers.tools."*"]
risk = "safe"
[servers.live]
{live}
"""


@asynccontextmanager
async def house(folder: Path, served: Models, *parts: str) -> AsyncGenerator[tuple[Scene, Stage]]:
    config = folder / "comity.toml"
    config.write_text("\n".join([MODEL.format(url=served.url), *parts]), "utf-8")
    with comity(config, {"MODEL_KEY": KEY}) as origin:
        async with aiohttp.ClientSession() as http:
            stage = Stage(folder, origin=origin)
            yield Scene(origin, config, lambda live: live, http, "hostile"), stage


def push(feature: str, event: str = "e1", text: str = "Hello", **more: object) -> Frame:
    params = {
        "featureSet": feature,
        "eventId": event,
        "timestamp": "2026-11-15T12:00:00Z",
        "payload": {"content": [{"type": "text", "text": text}]},
        **more,
    }
    return {"method": "push/event", "params": params}


def infer(feature: str, **more: object) -> Frame:
    messages = [{"role": "user", "content": "What do others say?"}]
    params = {"featureSet": feature, "messages": messages, **more}
    return {"method": "inference/request", "params": params}


def register(*ids: str) -> Frame:
    found = [{"id": id, "type": "chat", "label": id, "direction": "bidirectional"} for id in ids]
    return {"method": "channels/register", "params": {"channels": found}}


def incoming(channel: str, text: str = "Hello", author: str = "u_1") -> Frame:
    message = {
        "channelId": channel,
        "messageId": f"m-{channel}",
        "author": {"id": author, "name": author},
        "timestamp": "2026-11-15T12:00:00Z",
        "content": [{"type": "text", "text": text}],
    }
    return {"method": "channels/incoming", "params": {"messages": [message]}}
