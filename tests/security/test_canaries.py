"""Attack 23 of `docs/design/security.md` §1.5: sixteen secrets, planted wherever one can stand.

A real gateway before a real server that tells everybody what it knows. What the server gives to its
own caller is the caller's; nothing else that anybody can read may hold one of them.
"""

import base64
import json
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.cli.program import Desk
from tests.interop.processes import Program, answers, running
from tests.support.collector import Collected, collecting
from tests.support.commands import ROOT
from tests.support.fork_server import COMITY
from tests.support.visitor import ENVELOPE, Visitor, visiting_at

pytestmark = pytest.mark.timeout(300)

CANARIES = {
    "environment": "canary-01-kept-in-the-environment",
    "header": "canary-02-in-a-header-of-a-server",
    "url": "canary-03-in-the-address-of-a-server",
    "argument_of_a_program": "canary-04-argument-of-a-program",
    "bearer": "canary-05-of-a-client-who-is-not-known",
    "password": "canary-06-hunter2",
    "token_in_text": "ghp_canary07AbCdEfGhIjKlMnOpQrStUvWxYz",
    "header_in_arguments": "canary-08-x-api-key",
    "encoded": "canary-09-known-and-encoded",
    "url_in_arguments": "canary-10-pass",
    "as_a_name": "sk-canary11AbCdEfGhIjKlMnOpQrStUvWxYz",
    "wrong_argument": "canary-12-of-the-wrong-type",
    "result": "eyJjYW5hcnkxMyI6MX0.eyJjYW5hcnkiOjEzfQ.canary-13-signature",
    "resource": "canary-14-in-the-uri-of-a-resource",
    "tool_name": "glpat-canary15AbCdEfGhIjKl",
    "private_key": "canary16MIIEvQIBADANBgkqhkiG9w0BAQ",
}
CONFIG = """
[store]
url = "sqlite:///{folder}/comity.db"

[audit]
arguments = "all"
checkpoint_mirror = "{folder}/checkpoints.jsonl"

[approvals]
client_wait = "1s"

[telemetry]
traces = true

[[grants]]
subject = "*"
target = "careless/asked"
effect = "ask"

[[servers]]
id = "careless"
command = {python}
args = ["-m", "tests.security.careless_server", "--api-key", "${{PROGRAM}}"]
cwd = {root}
env = {{ TOKEN = "${{ENVIRONMENT}}", RESULT = "${{RESULT}}", OTHER_SECRET = "${{ENCODED}}" }}

[[servers]]
id = "away"
url = "http://127.0.0.1:9/mcp?key=${{URL}}"
headers = {{ Authorization = "Bearer ${{HEADER}}" }}
"""
GIVEN = {
    "ENVIRONMENT": CANARIES["environment"],
    "HEADER": CANARIES["header"],
    "URL": CANARIES["url"],
    "PROGRAM": CANARIES["argument_of_a_program"],
    "ENCODED": CANARIES["encoded"],
    "RESULT": CANARIES["result"],
}
_encoded = CANARIES["encoded"]
ARGUMENTS: dict[str, Any] = {
    "password": CANARIES["password"],
    "text": f"use {CANARIES['token_in_text']} for it, or {_encoded}",
    "headers": [{"name": "X-Api-Key", "value": CANARIES["header_in_arguments"]}],
    "basic": base64.b64encode(f"ana:{_encoded}".encode()).decode(),
    "percent": f"x{quote(_encoded, safe='')}y",
    "database": f"postgres://ana:{CANARIES['url_in_arguments']}@db.example.org/x",
    "nested": {"deep": [{CANARIES["as_a_name"]: 1}]},
    "key": f"-----BEGIN PRIVATE KEY-----\n{CANARIES['private_key']}\n-----END PRIVATE KEY-----",
}


@dataclass
class Scene:
    """A gateway that says all it can, and everything that anybody could read of it."""

    folder: Path
    program: Program
    origin: str
    visitor: Visitor
    spans: Collected
    desk: Desk
    shown: dict[str, str] = field(default_factory=dict[str, str])

    async def call(self, tool: str, arguments: object, **headers: str) -> str:
        """What the caller is told: a server's own words are for the caller."""
        params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
        reply = await self.visitor.other("/mcp").ask_modern(
            "tools/call", params, **{"mcp-name": tool, **headers}
        )
        return (await reply.body()).decode()

    async def look(self, place: str) -> None:
        reply = await self.visitor.send("GET", path=place)
        self.shown[place] = (await reply.body()).decode()


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncGenerator[Scene]:
    config = tmp_path / "comity.toml"
    config.write_text(
        CONFIG.format(
            folder=tmp_path, python=json.dumps(sys.executable), root=json.dumps(str(ROOT))
        )
    )
    with collecting() as spans:
        env = {
            **GIVEN,
            "LOG_LEVEL": "DEBUG",
            "OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        command = [COMITY, "serve", "-c", str(config), "--port", "0", "--log-format", "json"]
        with running(command, env) as program:
            origin = program.wait_for_line(r"listening on (http://[^\s\"]+)").group(1)
            program.wait_until(lambda: answers(f"{origin}/ready"))
            async with visiting_at(origin) as visitor:
                (tmp_path / "desk").mkdir()
                yield Scene(
                    tmp_path, program, origin, visitor, spans, Desk(tmp_path / "desk", **GIVEN)
                )


async def test_attack_23_sixteen_canaries_are_in_nothing_that_anybody_can_read(
    tmp_path: Path,
) -> None:
    assert len(CANARIES) == 16
    async with scene(tmp_path) as told:
        own = [await told.call(f"careless__{tool}", ARGUMENTS) for tool in _TOOLS]
        assert CANARIES["password"] in own[0], "the server has them, and gives them to its caller"
        assert CANARIES["result"] in own[0]
        ours = await _refused(told)
        await _shown(told)
        told.spans.wait_for_spans(len(_TOOLS))
    told.shown |= {f"refusal {place}": each for place, each in enumerate(ours)}
    told.shown["log"] = told.program.said
    told.shown["spans"] = repr(told.spans.spans) + repr(told.spans.metrics)
    told.shown |= _commands(told)
    told.shown |= _files(tmp_path)
    assert "TOOL_EXECUTED" in told.shown["export"]
    assert "[secret:" in told.shown["export"]
    assert "careless" in told.shown["log"]
    leaks = list(_leaks(told.shown))
    assert not leaks, "\n".join(map(str, leaks))


_TOOLS = ("keep", "fail", "break", "shout", "asked", "die")


async def _refused(told: Scene) -> list[str]:
    """What we word ourselves, of what never reached a server or was refused by it."""
    wrong = {"pin": CANARIES["wrong_argument"]}
    bearer = {"authorization": f"Bearer {CANARIES['bearer']}"}
    uri = f"https://ana:{CANARIES['resource']}@example.org/x?token={CANARIES['resource']}"
    reading = {"uri": uri, "_meta": ENVELOPE}
    read = await told.visitor.other("/mcp").ask_modern(
        "resources/read", reading, **{"mcp-name": uri}
    )
    return [
        await told.call("careless__typed", wrong),
        await told.call("careless__keep", {}, **bearer),
        await told.call(f"careless__{CANARIES['tool_name']}", ARGUMENTS),
        (await read.body()).decode(),
    ]


async def _shown(told: Scene) -> None:
    for place in (
        *("/health", "/ready", "/metrics", "/api/status", "/api/servers", "/api/servers/careless"),
        *("/api/servers/careless/logs", "/api/servers/away", "/api/tools", "/api/approvals"),
        *("/api/audit?limit=1000", "/api/audit/export", "/api/grants"),
    ):
        await told.look(place)
    told.shown["export"] = told.desk.run("audit", "export", "--url", told.origin).out
    assert "ask" in told.shown["/api/approvals"]


def _commands(told: Scene) -> dict[str, str]:
    """What commands say of what is left when the gateway has ended."""
    config = ("--offline", "-c", str(told.folder / "comity.toml"))
    found = told.desk.run("audit", "list", "--limit", "1000", "-o", "json", *config)
    said = {"search": found.out + found.err}
    traces = {entry["trace"] for entry in found.json["entries"] if entry["trace"]}
    for trace in sorted(traces)[:3]:
        said[f"show {trace}"] = told.desk.run("audit", "show", trace, *config).out
    said["verify"] = told.desk.run("audit", "verify", *config).out
    assert "The audit log is intact." in said["verify"]
    return said


def _files(folder: Path) -> dict[str, str]:
    """All that was left on the disk, byte by byte; what the operator wrote is the operator's."""
    files = [each for each in folder.iterdir() if each.is_file() and each.suffix != ".toml"]
    return {file.name: file.read_bytes().decode("latin-1") for file in files}


def _leaks(shown: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, canary in CANARIES.items():
        spelled = {canary, quote(canary, safe=""), base64.b64encode(canary.encode()).decode()[4:-4]}
        for place, said in shown.items():
            for each in spelled:
                found = said.find(each)
                if found >= 0:
                    yield name, place, said[max(0, found - 150) : found + 60]
