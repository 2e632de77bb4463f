"""Turns outlive the node that takes them: taken up again, by it or another, and said once."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.storage import postgres, schema
from tests.contracts.stores import a_database
from tests.interop.processes import Program, answers, operator_headers
from tests.live.model_server import ModelServer, serving
from tests.live.model_speech import Said
from tests.live.turn_scene import SERVER, Hook
from tests.pace import here

COMITY = str(Path(sys.executable).with_name("comity"))
PATIENCE = 90.0
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@dataclass
class Node:
    """One gateway in a process of its own."""

    program: Program
    origin: str
    http: aiohttp.ClientSession

    async def post(self, **body: Any) -> dict[str, Any]:
        async with self.http.post(f"{self.origin}/api/turns", json=body) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def get(self, id: str, **query: str) -> dict[str, Any]:
        async with self.http.get(f"{self.origin}/api/turns/{id}", params=query) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def ends(self, id: str) -> dict[str, Any]:
        async with asyncio.timeout(here(PATIENCE)):
            while True:
                found = await self.get(id, wait="2", after="1000000")
                if found["is_over"]:
                    return found

    def die(self) -> None:
        os.kill(self.program.pid, signal.SIGKILL)


@asynccontextmanager
async def a_node(config: Path) -> AsyncGenerator[Node]:
    command = [COMITY, "serve", "-c", str(config), "--port", "0"]
    program = Program(command, {"COMITY_PEPPER": "pepper-" * 8})
    try:
        line = r"listening on (http://\S+)"
        found = await asyncio.to_thread(program.wait_for_line, line, here(60))
        origin = found.group(1)
        await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready?strict"))
        timeout = aiohttp.ClientTimeout(here(PATIENCE))
        shown = operator_headers(origin)
        async with aiohttp.ClientSession(timeout=timeout, headers=shown) as http:
            yield Node(program, origin, http)
    finally:
        await asyncio.to_thread(program.stop)
        print(program.said, file=sys.stderr)


def written(folder: Path, store: str, models: ModelServer, hook: Hook, node: str = "one") -> Path:
    """A configuration with one server."""
    heard = {"HOOK_PLAY": hook.play, "HOOK_HEARD": str(folder / "heard")}
    env = "\n".join(f"{name} = {json.dumps(value)}" for name, value in heard.items())
    config = folder / f"{node}.toml"
    config.write_text(
        f"""
[store]
url = "{store}"
[audit]
node = "{node}"
[turns]
principal = "person:local"
[[models]]
id = "m"
api = "openai"
model = "m-1"
url = "{models.url}/v1"
[[servers]]
id = "shed"
command = "{sys.executable}"
args = ["{SERVER}"]
[servers.live]
enabled = ["x.*"]
[servers.env]
{env}
""",
        "utf-8",
    )
    return config


def heard(folder: Path, method: str) -> list[Mapping[str, Any]]:
    file = folder / "heard"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [each for each in map(json.loads, lines) if each.get("method") == method]


async def test_a_turn_amid_which_a_node_dies_is_taken_up_when_it_comes_back(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with serving(Said("lost", hold=True), Said("said"), Said("next")) as models:
        config = written(tmp_path, store, models, Hook("shed", hooks={}))
        async with a_node(config) as node:
            begun = await node.post(text="hello", key="k", conversation="c")
            later = await node.post(text="and then", key="l", conversation="c")
            async with asyncio.timeout(here(30)):
                await models.came.wait()
            node.die()
        models.release()
        async with a_node(config) as node:
            turn = await node.ends(begun["id"])
            assert (turn["state"], turn["reply"], turn["attempts"]) == ("done", "said", 2)
            assert (await node.ends(later["id"]))["turn"] == 1
            again = await node.post(text="hello", key="k", conversation="c")
            assert (again["id"], again["is_new"]) == (begun["id"], False)
            assert len(models.requests) == 3


async def test_a_tool_that_was_used_when_a_node_died_is_not_used_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    uses: Any = ({"name": "shed__slow", "arguments": {}, "id": "u1"},)
    slow: Any = [{"do": "sleep", "seconds": 3600}]
    async with serving(Said("let me", uses=uses), Said("I do not know")) as models:
        config = written(tmp_path, store, models, Hook("shed", hooks={}, tools={"slow": slow}))
        async with a_node(config) as node:
            begun = await node.post(text="hello")
            async with asyncio.timeout(here(60)):
                while not heard(tmp_path, "tools/call"):
                    await asyncio.sleep(0.05)
            node.die()
        async with a_node(config) as node:
            turn = await node.ends(begun["id"])
            assert turn["reply"] == "let me\n\nI do not know"
        assert len(heard(tmp_path, "tools/call")) == 1
        assert "its result is unknown" in json.dumps(models.requests[-1].body)


async def test_another_node_takes_over_a_turn_of_one_that_died(tmp_path: Path) -> None:
    async with a_database() as url, serving(Said("lost", hold=True), Said("said")) as models:
        fresh = postgres.product(url)
        await schema.upgrade_schema(fresh.engine)
        await fresh.close()
        hook = Hook("shed", hooks={})
        one, two = (written(tmp_path, url, models, hook, node) for node in ("one", "two"))
        async with a_node(one) as dying, a_node(two) as other:
            begun = await dying.post(text="hello", key="k")
            async with asyncio.timeout(here(30)):
                await models.came.wait()
            # It has it, unless the other was quicker; then that one finishes it as well.
            dying.die()
            models.release()
            turn = await other.ends(begun["id"])
            assert turn["state"] == "done"
            assert turn["reply"] in ("said", "lost")
            again = await other.post(text="hello", key="k")
            assert (again["id"], again["is_new"]) == (begun["id"], False)


async def test_a_person_speaks_with_a_model_from_a_shell(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with serving(Said("good day to you"), Said(status=400, body="{}")) as models:
        config = written(tmp_path, store, models, Hook("shed", hooks={}))
        async with a_node(config) as node:

            async def run(*words: str) -> subprocess.CompletedProcess[str]:
                command = [COMITY, "chat", *words, "--url", node.origin]
                return await asyncio.to_thread(
                    subprocess.run,
                    command,
                    capture_output=True,
                    text=True,
                    timeout=here(PATIENCE),
                    check=False,
                )

            assert "There are no turns" in (await run("list")).stdout
            done = await run("send", "hello", "--conversation", "garden")
            assert (done.returncode, done.stdout) == (0, "good day to you\n"), done.stderr
            failed = await run("send", "hello", "--conversation", "garden")
            assert failed.returncode == 1
            assert failed.stderr.startswith("comity: ")
            listed = json.loads((await run("list", "-o", "json")).stdout)["turns"]
            assert [each["state"] for each in listed] == ["failed", "done"]
            assert "garden#0" in (await run("list")).stdout
            shown = await run("show", listed[1]["id"])
            assert "good day to you" in shown.stdout


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
