"""Live servers that ask a model through the whole gateway, and the model that they ask."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from comity.audit.events import AuditEvent, AuditType
from tests.live.channel_scene import Frame, Puppet, Scene, scene
from tests.live.model_server import ModelServer, serving
from tests.live.model_speech import Said

KEY: Final = "sk-of-a-model-that-nobody-sees"
SETS: Final = {
    name: {"description": name, "uses": ["inferenceRequest"]}
    for name in ("memory.consolidation", "memory.light", "compliance.redaction", "off")
} | {"memory.hooks": {"description": "hooks", "uses": ["contextHooks.beforeInference"]}}
MAY: Final = 'enabled = ["memory.*", "compliance.*"]'


def model(id: str, server: ModelServer, api: str = "openai", **more: object) -> str:
    """A row of `[[models]]`."""
    url = server.url + ("/v1" if api == "openai" else "")
    members = {"id": id, "api": api, "url": url, "model": f"{id}-1", "key_env": "MODEL_KEY", **more}
    lines = [f"{name} = {written(value)}" for name, value in members.items()]
    return "[[models]]\n" + "\n".join(lines) + "\n"


def written(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def request(feature: str = "memory.consolidation", text: str = "Hello", **more: Any) -> Frame:
    messages = [{"role": "user", "content": text}]
    return {"featureSet": feature, "messages": messages, **more}


@dataclass(slots=True)
class Asking:
    """The gateway, a server that asks, and what was written down."""

    scene: Scene
    server: Puppet
    models: ModelServer
    events: list[AuditEvent] = field(default_factory=list[AuditEvent])

    def noted(self, type: AuditType = AuditType.MODEL_CALLED) -> list[Mapping[str, object]]:
        return [each.details for each in self.events if each.type == type]


@asynccontextmanager
async def asking(
    folder: Path, *replies: Said, rows: str | None = None, settings: str = "", **more: Any
) -> AsyncGenerator[Asking]:
    """`rows` stands for the models, of which one called `fast` is there unless it is given."""
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(serving(*replies))
        puppet = Puppet("memory", sets=SETS)
        text = (
            model("fast", models) if rows is None else rows.replace("URL", models.url)
        ) + settings
        staged = await stack.enter_async_context(
            scene(folder, puppet, rows=text, **{"live": MAY, **more})
        )
        found = Asking(staged, puppet, models)
        staged.parts.audit_log_components.audit_log.event_listeners.append(found.events.append)
        yield found
