"""Real gateways whose keys are rotated, whose key service fails, and whose store is searched."""

import asyncio
import logging
from collections.abc import Generator
from pathlib import Path

import aiohttp
import pytest

from tests.cli.program import Desk, Ran
from tests.events.test_webhook_gateway import called, completed, subscribed
from tests.events.webhook_gateway import Client, House
from tests.events.webhook_receiver import SECRET, SECRET_TEXT, a_receiver
from tests.secrets.clouds import Clouds, running_clouds
from tests.support.visitor import visiting

pytestmark = pytest.mark.integration
VAULT = "vault:transit/comity"


@pytest.fixture
def clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Clouds]:
    with running_clouds() as found:
        for name, value in found.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield found


class KeyHouse(House):
    """A gateway of which the keys change from one start to the next."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f"sqlite:///{folder / 'store.db'}")
        self.folder = folder
        (folder / "desk").mkdir()
        self.desk = Desk(folder / "desk")
        self._plain = self.config.read_text()

    def set_keys(self, *names: str) -> None:
        listed = ", ".join(f'"{name}"' for name in names)
        self.config.write_text(f"[secrets]\nkeys = [{listed}]\n{self._plain}")

    async def run(self, origin: str, *words: str) -> Ran:
        return await asyncio.to_thread(
            self.desk.run, "secrets", *words, "--url", origin, "-o", "json"
        )

    def check_store(self) -> None:
        """No file beside the store has the secret, in any of its spellings."""
        for file in self.folder.glob("store.db*"):
            data = file.read_bytes()
            for spelling in (SECRET, SECRET_TEXT.encode(), SECRET_TEXT[6:].encode(), b"hvs."):
                assert spelling not in data, file


async def test_a_key_is_replaced_while_events_are_signed(tmp_path: Path, clouds: Clouds) -> None:
    house = KeyHouse(tmp_path)
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as http,
        a_receiver() as receiver,
    ):
        house.set_keys("pepper")
        async with house.open() as (_, origin):
            client = Client(http, origin)
            await client.greet()
            await subscribed(client, receiver)
            assert await called(client)
        house.check_store()

        house.set_keys(VAULT, "pepper")
        async with house.open() as (program, origin):
            listed = (await house.run(origin, "list")).json["keys"]
            assert [(each["name"], each["values"]) for each in listed] == [
                (VAULT, {}),
                ("pepper", {"webhooks": 1}),
            ]
            rotated = await house.run(origin, "rotate")
            assert (rotated.status, rotated.json["resealed"]) == (0, 1)
            assert (await house.run(origin, "check")).json["unreadable"] == {
                "webhooks": 0,
                "sessions": 0,
                "accounts": 0,
                "account clients": 0,
            }
            words = ("audit", "--url", origin, "-o", "json")
            audit = await asyncio.to_thread(house.desk.run, *words)
            assert "dev.comity.secrets_rotated" in audit.out
            assert VAULT in audit.out
            assert SECRET_TEXT not in audit.out
            client = Client(http, origin)
            await client.greet()
            await called(client)
            await receiver.until(lambda: len(receiver.taken) == 2)
            assert SECRET_TEXT not in program.said
        house.check_store()

        # The pepper key is no longer needed, and Vault is away when the gateway starts.
        house.set_keys(VAULT)
        clouds.is_down = True
        async with house.open() as (program, origin):
            client = Client(http, origin)
            await client.greet()
            checked = await house.run(origin, "check")
            assert checked.status == 1
            assert checked.json["keys"][0]["problem"] == (
                f"{VAULT} refused the request: status 503"
            )
            assert "error" in await client.subscribe("https://127.0.0.1:1/x")
            (trace,) = await called(client)
            refused = await client.subscribe(receiver.url, "tool.blocked")
            assert f"{VAULT} refused the request" in refused["error"]["message"]
            assert "hvs." not in str(refused)
            clouds.is_down = False
            await receiver.until(lambda: trace in completed(receiver))
            assert "hvs." not in program.said


async def test_a_gateway_with_an_unusable_key_does_not_start(tmp_path: Path) -> None:
    house = KeyHouse(tmp_path)
    house.set_keys(f"file:{tmp_path / 'key'}")
    ran = await asyncio.to_thread(house.desk.run, "serve", "-c", str(house.config), "--port", "0")
    assert ran.status == 2
    assert "secrets.keys" in ran.err
    words = ("config", "check", "-c", str(house.config), "-o", "json")
    checked = await asyncio.to_thread(house.desk.run, *words)
    findings = {each["about"]: each["verdict"] for each in checked.json["engines"]}
    assert findings["key of stored credentials"] == "problem"


async def test_only_an_operator_rotates_and_no_view_has_a_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = tmp_path / "key"
    key.write_text("k" * 20 + "-text-of-the-key-in-a-file")
    key.chmod(0o600)
    async with visiting(secrets_keys=(f"file:{key}", "pepper")) as visitor:
        for path in ("/api/secrets", "/api/secrets/check"):
            refused = await visitor.send("GET", [("authorization", "Bearer of nobody")], path=path)
            assert refused.status == 401
            reply = await visitor.send("GET", path=path)
            text = (await reply.body()).decode()
            assert reply.status == 200
            assert f"file:{key}" in text
            assert "text-of-the-key" not in text
        kind = ("content-type", "application/json")
        for body, status in ((b"{}", 200), (b'{"cursor": "x/"}', 400), (b'{"keys": []}', 400)):
            reply = await visitor.send("POST", [kind], body, "/api/secrets/rotate")
            assert reply.status == status
        redactor = visitor.parts.audit_log_components.redactor
        assert "text-of-the-key" not in redactor.redact_text(key.read_text())
    assert "text-of-the-key" not in caplog.text
