"""A whole house for a test: an example as it stands, a model on loopback, a gateway, a topic."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from comity.sdk.topics.events import Chat
from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic
from tests.docs.pages import ROOT
from tests.interop.processes import Program, answers, operator_headers, running
from tests.pace import here

BIN: Final = Path(sys.executable).parent
PATIENCE: Final = 60.0
KEY: Final = "sk-of-the-model-on-loopback"
# What is run is watched on its standard error.
_ALOUD: Final = ("/bin/sh", "-c", 'cd "$0" && exec "$@" 1>&2')


@dataclass(frozen=True, slots=True)
class Models:
    """The model server, in a process of its own."""

    url: str

    def asked(self) -> list[dict[str, Any]]:
        """The bodies of all that models were asked, in order."""
        return [each["body"] for each in json.loads(fetch(f"{self.url}/requests")[1])]

    def add(self, *replies: Mapping[str, Any]) -> None:
        status, said = fetch(f"{self.url}/replies", json.dumps(replies).encode())
        assert status == 200, said


@contextmanager
def models(*replies: Mapping[str, Any]) -> Generator[Models]:
    command = [*_ALOUD, str(ROOT), sys.executable, "-m", "tests.live.model_server", "--port", "0"]
    with running(command) as program:
        served = Models(program.wait_for_line(r"^(http://127\S+)$").group(1))
        served.add(*replies)
        yield served


@dataclass(slots=True)
class Stage:
    """One example, copied as it stands into a folder of its own."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict[str, str])
    origin: str = ""
    program: Program | None = None

    @classmethod
    def of(cls, example: str, folder: Path, models: Models, **env: str) -> "Stage":
        shutil.copytree(ROOT / "examples" / example, folder, dirs_exist_ok=True)
        given = {"MODEL_URL": f"{models.url}/v1", "MODEL_KEY": KEY, **env}
        given["COMITY_STATE_DIR"] = os.environ["COMITY_STATE_DIR"]
        # Beside the folder: a confined script does not open a folder that holds the home.
        home = folder.with_name(f"{folder.name}-home")
        home.mkdir()
        return cls(folder, {"PATH": f"{BIN}:{os.defpath}", "HOME": str(home), **given})

    @contextmanager
    def gateway(self, config: str = "comity.toml") -> Generator[str]:
        """`comity serve`, until the way out; gives where it is. May be done again."""
        command = [str(BIN / "comity"), "serve", "-c", config, "--port", "0"]
        with running([*_ALOUD, str(self.folder), *command], self.env) as program:
            self.program = program
            self.origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
            program.wait_until(lambda: answers(f"{self.origin}/ready"))
            yield self.origin

    @property
    def said(self) -> str:
        return "" if self.program is None else self.program.said

    def rewrite(self, old: str, new: str, config: str = "comity.toml") -> None:
        """As an operator does who changes one line of the configuration."""
        path = self.folder / config
        text = path.read_text("utf-8")
        assert text.count(old) == 1, (old, text)
        path.write_text(text.replace(old, new), "utf-8")

    def journal(self, type: str = "") -> list[dict[str, Any]]:
        """What happened, the oldest first, as `comity audit list` finds it."""
        chosen = ["--type", type] if type else []
        command = ["audit", "list", "-o", "json", "--oldest", "--limit", "500", *chosen]
        done = subprocess.run(
            [str(BIN / "comity"), *command, "--url", self.origin],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=here(PATIENCE),
            check=False,
        )
        # Status 1 says that there is nothing.
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)["entries"] if done.returncode == 0 else []

    async def turn(self, text: str, conversation: str, **more: object) -> dict[str, Any]:
        """Have a turn taken over the gateway's own API, and see what came of it."""
        said = {"text": text, "conversation": conversation, **more}
        begun = await self.api("turns", said)
        return await self.turned(begun["id"])

    async def turned(self, id: str) -> dict[str, Any]:
        deadline = time.monotonic() + here(PATIENCE)
        while not (found := await self.api(f"turns/{id}?wait=5"))["is_over"]:
            assert time.monotonic() < deadline, found
        return found

    async def api(self, place: str, body: object = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        status, said = await asyncio.to_thread(fetch, f"{self.origin}/api/{place}", sent)
        assert status in (200, 201), (status, said)
        return json.loads(said)


@dataclass(slots=True)
class Seat:
    """Somebody in a topic, who hears all that is said there."""

    me: Participant
    heard: list[Chat] = field(default_factory=list[Chat])

    def said(self, by: str = "") -> list[str]:
        return [each.text for each in self.heard if each.sender != self.me.id and by in each.sender]

    async def say(self, text: str) -> None:
        await self.me.chat(text)


@asynccontextmanager
async def seat(origin: str, topic: str, alias: str = "ana") -> AsyncGenerator[Seat]:
    async with join_topic(origin, topic, options=ParticipantOptions(alias=alias)) as me:
        found = Seat(me)

        async def listen() -> None:
            async for event in me:
                if isinstance(event, Chat):
                    found.heard.append(event)

        listening = asyncio.create_task(listen())
        try:
            yield found
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def until[T](look: Callable[[], T], seconds: float = PATIENCE, what: str = "") -> T:
    """What is found, once it is; looked for again and again within bounds."""
    deadline = time.monotonic() + here(seconds)
    while not (found := await asyncio.to_thread(look)):
        assert time.monotonic() < deadline, what or f"it never came: {found!r}"
        await asyncio.sleep(0.05)
    return found


def fetch(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """How a GET, or a POST of a body, was answered."""
    shown = operator_headers(url) if "/api/" in url else {}
    given = {"Content-Type": "application/json", **shown, **(headers or {})}
    request = urllib.request.Request(url, body, given)  # noqa: S310  # on loopback
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310  # loopback only
            return reply.status, reply.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def words_in(asked: Mapping[str, Any]) -> str:
    """All that stood in one prompt."""
    messages: Sequence[Mapping[str, Any]] = asked["messages"]
    return "\n".join(json.dumps(each.get("content"), ensure_ascii=False) for each in messages)
