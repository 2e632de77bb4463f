"""The configuration in effect with its sources, the last reload, and the health of the parts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from comity.app import settings_api
from comity.app.settings import Settings
from comity.app.settings_api import ConfigState, HealthCheck, SettingsApi
from comity.app.settings_reader import ConfigSource
from comity.errors import Unavailable
from comity.http.api import ApiRouter
from comity.mcp.actors import LOCAL_OPERATOR

FILE = """
port = 4000

[limits]
max_sessions = 77

[store]
url = "postgresql://ana:canary-word@db.example.org/comity"
"""


def allow(*_: object) -> None:
    """Everybody may do everything."""


async def read(api: SettingsApi, path: str) -> Any:
    found = await ApiRouter(allow, api.routes).answer("GET", path, {}, LOCAL_OPERATOR)
    return json.loads(json.dumps(found, default=str))


def _learn_nothing(_: Settings) -> None: ...


def state_of(folder: Path, **environ: str) -> ConfigState:
    (folder / "comity.toml").write_text(FILE, encoding="utf-8")
    source = ConfigSource(
        folder, folder, environ, overrides={"host": "127.0.0.9"}, needs_trust=False
    )
    return ConfigState(source.load().settings, _learn_nothing, source)


async def test_each_setting_has_its_value_and_its_source(tmp_path: Path) -> None:
    state = state_of(tmp_path, COMITY_LIMITS_MAX_DEPTH="9")
    found = await read(SettingsApi(state, {}), "/api/config")
    by_name = {each["name"]: each for each in found["settings"]}
    file = str(tmp_path / "comity.toml")
    assert found["files"] == [file]
    assert by_name["limits.max_sessions"] == {
        "name": "limits.max_sessions",
        "value": 77,
        "source": "file",
        "file": file,
        "line": 5,
        "variable": None,
    }
    assert (by_name["port"]["source"], by_name["port"]["line"]) == ("file", 2)
    assert by_name["limits.max_depth"]["variable"] == "COMITY_LIMITS_MAX_DEPTH"
    assert by_name["limits.max_depth"]["value"] == 9
    assert by_name["host"]["source"] == "command line"
    assert by_name["limits.session_idle_timeout"]["source"] == "default"


async def test_no_secret_is_shown(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    found = await read(SettingsApi(state, {}), "/api/config")
    assert "canary" not in json.dumps(found)


async def test_the_last_reload_is_told_with_its_error(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    api = SettingsApi(state, {})
    state.on_error("comity.toml:2: port must be a number")
    told = (await read(api, "/api/config"))["reload"]
    assert told["error"] == "comity.toml:2: port must be a number"
    state.on_reload(state.settings, ("port",), {"/srv/comity.toml": "1f"})
    told = (await read(api, "/api/config"))["reload"]
    assert (told["error"], told["needs_restart"]) == (None, ["port"])


async def test_a_part_that_fails_or_is_slow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_api, "CHECK_TIMEOUT_SECONDS", 0.01)

    async def answers() -> str:
        return "it answers"

    async def fails() -> str:
        raise Unavailable("the store does not answer")

    async def hangs() -> str:

        await asyncio.Event().wait()
        return ""

    checks: dict[str, HealthCheck] = {"nats": answers, "store": fails, "issuer": hangs}
    found = await read(SettingsApi(ConfigState(Any, _learn_nothing), checks), "/api/health")  # pyright: ignore[reportArgumentType]
    assert found["ok"] is False
    assert [(each["name"], each["ok"]) for each in found["checks"]] == [
        ("nats", True),
        ("store", False),
        ("issuer", False),
    ]
    assert found["checks"][0]["latency_ms"] is not None
