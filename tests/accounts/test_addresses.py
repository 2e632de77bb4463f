"""Tokens go only to the address for which they were obtained."""

import asyncio
import os
import signal
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError

from tests.accounts.hostile_server import (
    HostilePort,
    HostileServer,
    a_hostile_port,
)
from tests.accounts.scene import ANA, AccountScene, an_account_scene
from tests.console.world import text_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

MOVED = "moved"


@dataclass
class MovingScene:
    """A gateway with one server, whose address the operator can change while it runs."""

    scene: AccountScene
    config: Path
    first: HostilePort
    second: HostilePort

    async def connect(self) -> None:
        browser = await self.scene.browser(ANA)
        begun = await self.scene.begin(browser, f"/accounts/connect/{MOVED}")
        assert "is connected" in (await self.scene.finish(browser, begun)).text

    async def call(self) -> str:
        try:
            async with self.scene.client(ANA) as client:
                return text_of(await client.call_tool(f"{MOVED}__look", {}))
        except (MCPError, ExceptionGroup):
            return "refused"

    async def call_until_seen(self) -> None:
        async with asyncio.timeout(60):
            while await self.call() != "seen":
                await asyncio.sleep(0.1)

    def change(self, before: str, after: str) -> None:
        """Change the settings while the gateway runs."""
        written = self.config.read_text()
        assert before in written
        self.config.write_text(written.replace(before, after))
        os.kill(self.scene.programs[0].pid, signal.SIGHUP)


@pytest.fixture
def moving(tmp_path: Path) -> Generator[MovingScene]:
    with a_hostile_port() as first, a_hostile_port() as second:
        tables = (
            f'[[servers]]\nid = "{MOVED}"\nurl = "{first[MOVED].url}/mcp"\n'
            'account = "each"\npolicy = { risk = "safe" }\n'
        )
        with an_account_scene(tmp_path, tables=tables) as scene:
            yield MovingScene(scene, tmp_path / "node-0.toml", first, second)


def shown_tokens(server: HostileServer) -> set[str]:
    return {each.shown_token for each in server.requests} - {""}


async def test_a_token_stays_away_from_the_new_address_of_its_server(moving: MovingScene) -> None:
    first, second = moving.first[MOVED], moving.second[MOVED]
    await moving.connect()
    await moving.call_until_seen()
    assert shown_tokens(first) & first.private
    moving.change(first.url, second.url)
    async with asyncio.timeout(60):
        while not second.requests_to("/mcp"):
            await asyncio.sleep(0.05)
    for _ in range(3):
        assert await moving.call() == "refused"
    everything = "".join(str(each) for each in second.requests)
    assert not [secret for secret in first.private if secret in everything]
    await moving.connect()
    await moving.call_until_seen()
    assert shown_tokens(second) <= second.private
