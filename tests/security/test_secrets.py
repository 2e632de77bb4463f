"""Attacks 6 and 23 of `docs/design/security.md` §1.5: whose secrets go where, and where never.

Canaries are planted wherever a secret is written, then every place that anybody reads is searched.
"""

import json
import sys
from pathlib import Path

import pytest

from comity.app.settings import ServerSettings
from comity.app.settings_reader import load_settings
from tests.interop.processes import Program, answers, running
from tests.support.admitted import EVERYBODY_MAY_CALL
from tests.support.commands import ARGS, ROOT
from tests.support.credentials import GivenOut
from tests.support.piped import COMITY
from tests.support.upstream import Exchange, Upstream, scripted
from tests.support.visitor import ENVELOPE, Frame, Visitor, at, visiting, visiting_at

GIVEN_OUT = GivenOut()
KEY = GIVEN_OUT.give("agent:ci", label="canary")
INBOUND = {
    "authorization": f"Bearer {KEY}",
    "proxy-authorization": "Basic canary-inbound-proxy",
    "cookie": "session=canary-inbound-cookie",
    "x-api-key": KEY,
    "forwarded": "for=canary-inbound-address",
}


async def test_attack_06_what_a_client_proves_itself_with_reaches_no_server() -> None:
    known = GIVEN_OUT.register
    async with (
        scripted(modern=True) as server,
        visiting(at(server.url), register=known, grants=EVERYBODY_MAY_CALL) as visitor,
    ):
        visitor.session = dict(INBOUND)
        await visitor.greet()
        visitor.session |= INBOUND
        await visitor.call("plain")
        await visitor.get()
        await visitor.call_modern("plain", **INBOUND)
        await visitor.send("DELETE", visitor.session.items())
        merged = visitor.other("/mcp")
        merged.session = dict(INBOUND)
        await merged.ask_modern("tools/list", {"_meta": ENVELOPE}, **INBOUND)
    sent = [(each.path, each.pairs, each.body) for each in server.heard]
    assert len(sent) > 6
    assert "canary" not in str(sent)
    assert KEY[10:] not in str(sent)


async def test_attack_06_no_token_of_a_client_reaches_a_process() -> None:
    up = ServerSettings("up", "up", "stdio", command=sys.executable, args=ARGS, cwd=str(ROOT))
    async with visiting(up, register=GIVEN_OUT.register, grants=EVERYBODY_MAY_CALL) as visitor:
        visitor.session = dict(INBOUND)
        await visitor.greet()
        visitor.session |= INBOUND
        told = [await _text(visitor, tool) for tool in ("plain", "heard")]
    assert "arguments" in told[0]
    assert "canary" not in str(told)
    assert KEY[10:] not in str(told)


async def test_attack_06_the_environment_of_the_gateway_is_not_its_servers(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": list(ARGS), "cwd": str(ROOT)}
    store = f"sqlite:///{tmp_path}/canary.db"
    inherited = {"AWS_SECRET_ACCESS_KEY": "canary-of-the-operator", "DATABASE_URL": store}
    with _gateway(tmp_path, {"up": {**entry, "env": {"MINE": "given"}}}, inherited) as (_, origin):
        async with visiting_at(origin) as visitor:
            await visitor.greet()
            told = await _text(visitor, "plain")
    assert json.loads(told)["env"]["MINE"] == "given"
    assert "canary" not in told


async def _text(visitor: Visitor, tool: str) -> str:
    frames = await (await visitor.call(tool)).frames()
    return frames[-1]["result"]["content"][0]["text"]


class _Gateway:
    """`comity serve` that says all it can say, as a context."""

    def __init__(self, folder: Path, servers: dict[str, object], env: dict[str, str]) -> None:
        config = folder / "mcp.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        self._running = running(
            [COMITY, "serve", "-c", str(config), "--port", "0"], {"LOG_LEVEL": "DEBUG", **env}
        )

    def __enter__(self) -> tuple[Program, str]:
        program = self._running.__enter__()
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        return program, origin

    def __exit__(self, *problem: object) -> None:
        self._running.__exit__(None, None, None)


def _gateway(
    folder: Path, servers: dict[str, object], env: dict[str, str] | None = None
) -> _Gateway:
    return _Gateway(folder, servers, env or {})


PLANTED = {
    "CANARY_ENV": "canary-in-the-environment",
    "CANARY_HEADER": "canary-in-a-header",
    "CANARY_URL": "canary-in-a-url",
    "CANARY_ARG": "canary-in-an-argument",
}


def planted(url: str) -> dict[str, object]:
    """Servers that hold secrets, and each fails in its own way."""
    noisy = "import os,sys; sys.stderr.write(os.environ['TOKEN'] + '\\n'); sys.exit(9)"
    headers = {"Authorization": "Bearer ${CANARY_HEADER}"}
    return {
        "dies": {
            "command": sys.executable,
            "args": ["-c", noisy, "${CANARY_ARG}"],
            "env": {"TOKEN": "${CANARY_ENV}"},
        },
        "refuses": {"type": "http", "url": f"{url}?key=${{CANARY_URL}}", "headers": headers},
        "is-not-there": {
            "type": "http",
            "url": "http://127.0.0.1:9/mcp?key=${CANARY_URL}",
            "headers": headers,
        },
        "no-program": {"command": "./no-such-program", "args": ["${CANARY_ARG}"]},
    }


@pytest.fixture
def canaries() -> list[str]:
    return list(PLANTED.values())


async def test_attack_23_no_secret_is_logged_told_or_shown(
    tmp_path: Path, canaries: list[str]
) -> None:
    async with scripted() as server:
        _refuse_everything(server)
        with _gateway(tmp_path, planted(server.url), PLANTED) as (program, origin):
            shown: list[str] = []
            async with visiting_at(origin) as visitor:
                await server.arrival("initialize")
                shown += [
                    (await (await visitor.send("GET", path=path)).body()).decode()
                    for path in ("/health", "/ready", "/nowhere")
                ]
                for name in ("dies", "refuses", "is-not-there", "no-program"):
                    shown.append(await _refusal_at(visitor.other(f"/servers/{name}/mcp")))
                shown.append(await _refusal_at(visitor.other("/mcp")))
            program.wait_until(lambda: answers(f"{origin}/ready"))
            shown.append(program.said)
    sent = str([(each.path, each.pairs) for each in server.heard])
    assert canaries[1] in sent, "the secret was planted, and reached the server it is for"
    assert "refuses" in program.said, "the gateway was asked to say all it can"
    assert [canary for canary in canaries if canary in "\n".join(shown)] == []


def _refuse_everything(server: Upstream) -> None:
    """Answer as a careless server does: with the credentials it was sent."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(401, f"no such key: {exchange.pairs} {exchange.path}".encode())

    for method in ("initialize", "server/discover", "tools/list"):
        server.act(method)(refuse)


async def _refusal_at(visitor: Visitor) -> str:
    hello: Frame = {"protocolVersion": "2025-11-25", "capabilities": {}}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    first = await (await visitor.post(frame)).body()
    modern = await visitor.call_modern("anything")
    return first.decode() + (await modern.body()).decode() + str(modern.headers)


def test_attack_23_no_setting_shows_a_secret(tmp_path: Path, canaries: list[str]) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": planted("http://127.0.0.1:9/mcp")}))
    settings = load_settings(config, PLANTED)
    shown = f"{settings!r} {settings.servers} {[str(server) for server in settings.servers]}"
    assert [canary for canary in canaries if canary in shown] == []
