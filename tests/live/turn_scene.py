"""A gateway with real servers around a real model: turns are asked for, and looked at."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings import ServerSettings
from comity.errors import MalformedMessage
from comity.inference.settings import ModelSettings
from comity.live.turns.service import TurnWorker
from comity.mcp.actors import LOCAL, LOCAL_OPERATOR, Actor
from tests.interop.peers import ROOT
from tests.live.model_server import ModelServer, serving
from tests.live.model_speech import Asked as AskedModel
from tests.live.model_speech import Said
from tests.pace import here
from tests.support.settings import settings_with

PATIENCE: Final = 60.0
SERVER: Final = Path(__file__).with_name("hook_server.py")
BEFORE: Final = "contextHooks.beforeInference"
AFTER: Final = "contextHooks.afterInference"
BLOCKING: Final = {"beforeInference": True, "afterInference": {"blocking": True}}
TELLING: Final = {"beforeInference": True, "afterInference": True}

type Frame = dict[str, Any]


def a_set(*uses: str) -> Frame:
    return {"description": "for a test", "uses": list(uses)}


SETS: Final[Mapping[str, Frame]] = {
    "x.both": a_set(BEFORE, AFTER),
    "x.before": a_set(BEFORE),
    "x.after": a_set(AFTER),
    "x.off": a_set(BEFORE, AFTER),
    "x.tools": a_set("tools"),
}
ENABLED: Final = ("x.both", "x.before", "x.after", "x.tools")


def gives(*injections: Frame, feature: Any = "x.both") -> Frame:
    """A server answers before."""
    return {
        "do": "answer",
        "result": {"featureSet": feature, "contextInjections": list(injections)},
    }


def injection(
    text: Any, position: str = "beforeUser", namespace: str = "odd", **more: Any
) -> Frame:
    return {"namespace": namespace, "position": position, "content": text, **more}


def rewrites(text: Any, feature: Any = "x.both") -> Frame:
    """A server answers after."""
    return {"do": "answer", "result": {"featureSet": feature, "modifiedResponse": text}}


LETS: Final[Frame] = {"do": "answer", "result": {"featureSet": "x.both"}}


@dataclass(frozen=True)
class Hook:
    """One server, what it plays, and what its operator lets it."""

    name: str
    before: tuple[Frame, ...] = (gives(),)
    after: tuple[Frame, ...] = (LETS,)
    hooks: Frame = field(default_factory=lambda: dict(BLOCKING))
    live: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sets: Mapping[str, Frame] = field(default_factory=lambda: dict(SETS))
    tools: Mapping[str, Any] = field(default_factory=dict[str, Any])
    declares: Frame = field(default_factory=dict[str, Any])
    is_http: bool = False

    @property
    def play(self) -> str:
        played = {
            "sets": dict(self.sets),
            "hooks": self.hooks,
            "before": list(self.before),
            "after": list(self.after),
            "tools": dict(self.tools),
            "declares": self.declares,
        }
        return json.dumps(played)


@dataclass(frozen=True)
class Scene:
    """What is there while a turn is taken."""

    parts: GatewayParts
    models: ModelServer
    folder: Path

    async def asks(
        self, method: str, *place: str, actor: Actor = LOCAL_OPERATOR, **query: Any
    ) -> Frame:
        body = query.pop("body", {})
        given = {name: str(each) for name, each in query.items()} if method == "GET" else body
        path = "/".join(("/api/turns", *place))
        return dict(await self.parts.api.answer(method, path, given, actor))

    async def begins(self, text: str | None = "hello", **more: Any) -> str:
        body = {} if text is None else {"text": text}
        begun = await self.asks("POST", body={**body, **more})
        assert isinstance(begun["id"], str)
        return begun["id"]

    async def ends(self, id: str) -> Frame:
        """The turn, once it has ended."""
        async with asyncio.timeout(here(PATIENCE)):
            while True:
                found = await self.asks("GET", id, wait=5, after=10**9)
                if found["is_over"]:
                    return found

    async def turn(self, text: str | None = "hello", **more: Any) -> Frame:
        return await self.ends(await self.begins(text, **more))

    @property
    def taker(self) -> TurnWorker:
        """Who takes turns, as the parts beside it know it."""
        routes = {route.address: route for route in self.parts.api.routes}
        handler: Any = routes["GET", "/api/turns"].handler
        return handler.__self__._turns

    def heard(self, name: str, method: str = "") -> list[Frame]:
        """All that a server has heard, or only what has this method."""
        file = self.folder / f"{name}.heard"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        frames = [json.loads(line) for line in lines]
        return [each for each in frames if not method or each.get("method") == method]

    async def hears(self, name: str, method: str, count: int = 1) -> list[Frame]:
        """The same, once it has heard so many."""
        async with asyncio.timeout(here(PATIENCE)):
            while len(found := self.heard(name, method)) < count:
                await asyncio.sleep(0.02)
        return found

    async def noted(self, type: str, **where: Any) -> list[Frame]:
        """What the journal has of this type."""
        entries = await self.noted_as(f"dev.comity.{type}")
        return [
            each for each in entries if all(_of(each, name) == it for name, it in where.items())
        ]

    async def noted_as(self, type: str) -> list[Frame]:
        await self.parts.audit_log_components.audit_log.flush()
        query = {"type": type, "limit": "200"}
        answered = await self.parts.api.answer("GET", "/api/audit", query, LOCAL_OPERATOR)
        found: Any = dict(answered)
        return json.loads(json.dumps(found, default=str))["entries"]

    async def refused(self, method: str, *place: str, **more: Any) -> str:
        """Why not."""
        try:
            await self.asks(method, *place, **more)
        except MalformedMessage as error:
            return error.fault.error_type
        return ""

    def prompt(self, number: int = -1) -> str:
        """All that the model was given, as text."""
        return json.dumps(self.models.requests[number].body["messages"], ensure_ascii=False)


def _of(entry: Frame, name: str) -> Any:
    # An entry has members of its own for the end of a call, which are empty for other events.
    own = entry.get(name)
    return entry.get("details", {}).get(name) if own is None else own


@asynccontextmanager
async def playing(
    folder: Path, hooks: Iterable[Hook], *replies: Said, answer: Any = None, **settings: Any
) -> AsyncGenerator[Scene]:
    """A gateway with these servers, and a model that says this; all of it real."""
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(
            serving(*(replies or (Said("from the model"),) * 20), answer=answer)
        )
        servers = [await stack.enter_async_context(_server(folder, each)) for each in hooks]
        settings.setdefault("models", (model_at(models.url),))
        settings.setdefault("turns_before_hook_timeout", timedelta(seconds=here(20)))
        settings.setdefault("turns_after_hook_timeout", timedelta(seconds=here(20)))
        settings.setdefault("turns_principal", LOCAL.party)
        made = settings_with(servers=tuple(servers), **settings)
        parts = await stack.enter_async_context(assemble_gateway(made))
        await parts.servers.wait_for_first_starts(timedelta(seconds=here(PATIENCE)))
        async with asyncio.timeout(here(PATIENCE)):
            while any(
                parts.server_policies.live_host.get(each.id) is None
                for each in servers
                if each.live
            ):
                await asyncio.sleep(0.01)
        yield Scene(parts, models, folder)


def model_at(url: str) -> ModelSettings:
    return ModelSettings("m", "openai", "m-1", f"{url}/v1", capabilities=("tools", "vision"))


@asynccontextmanager
async def _server(folder: Path, hook: Hook) -> AsyncGenerator[ServerSettings]:
    env = {
        "HOOK_PLAY": hook.play,
        "HOOK_HEARD": str(folder / f"{hook.name}.heard"),
        "PYTHONPATH": str(ROOT),
    }
    live = {"enabled": ENABLED, **hook.live}
    plain = ServerSettings(
        *(hook.name, hook.name, "stdio"),
        command=sys.executable,
        args=(str(SERVER),),
        env=env,
        sandbox="none",
    )
    plain = replace(plain, live=live)
    if not hook.is_http:
        yield plain
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), "--http", env=env, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        yield ServerSettings(
            hook.name, hook.name, "http", url=url, live=live, protocol="2025-11-25"
        )
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


__all__ = ["AskedModel", "Hook", "Scene", "gives", "injection", "playing", "rewrites"]
