"""Attack 6 of `docs/design/security.md` §1.5: what a client shows itself by ends at the door.

A key, a token and an `auth` member go in by every door and in every way that fails; then every
place that anybody reads is searched for them.
"""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.program import Desk
from tests.interop.processes import Program, answers, free_port, running
from tests.support.collector import Collected, collecting
from tests.support.commands import ARGS, ROOT
from tests.support.fork_server import COMITY
from tests.support.issuing import IssuerServer, SigningKey, issuing
from tests.support.upstream import Exchange, Upstream, scripted
from tests.support.visitor import BOTH, ENVELOPE, MODERN, Reply, Visitor, request, visiting_at

pytestmark = pytest.mark.timeout(240)


@dataclass
class Watched:
    """A gateway, and all that can be read of what it does."""

    visitor: Visitor
    program: Program
    server: Upstream
    spans: Collected
    key: str
    token: str
    told: list[str] = field(default_factory=list[str])

    def canaries(self) -> list[str]:
        """What must be nowhere: the secret parts, and the same in other spellings."""
        found = [self.key.split("_")[3], *self.token.split(".")]
        found += [
            base64.b64encode(f"Bearer {each}".encode()).decode() for each in (self.key, self.token)
        ]
        return [each[:40] for each in found]

    async def note(self, reply: Reply) -> None:
        self.told.append(f"{reply.status} {reply.headers} {(await reply.body()).decode()}")


TOOLS = ("plain", "breaks")
# Who is granted a tool itself needs nobody's approval for it.
GRANTED = ("piped/plain", "piped/heard", "http/plain", "http/breaks")
CONFIG = """
port = {port}
[store]
url = "sqlite:///{folder}/comity.db"
[approvals]
client_wait = "200ms"
[identity]
mode = "required"
accept_auth_member = true
[[identity.issuers]]
issuer = "{issuer}"
audience = "http://127.0.0.1:{port}"
[[grants]]
subject = "*"
verb = "*"
target = "*"
[[servers]]
id = "piped"
command = "{python}"
args = {args}
cwd = "{root}"
[[servers]]
id = "http"
url = "{url}"
"""


@contextmanager
def _gateway(
    desk: Desk, issuer: IssuerServer, url: str, spans: Collected
) -> Generator[tuple[Program, str, str]]:
    port, args = free_port(), json.dumps(list(ARGS))
    desk.write(
        "comity.toml",
        CONFIG.format(
            port=port,
            folder=desk.folder,
            issuer=issuer.url,
            python=sys.executable,
            args=args,
            root=ROOT,
            url=url,
        )
        + "".join(f'[[grants]]\nsubject = "*"\ntarget = "{each}"\n' for each in GRANTED),
    )
    key = desk.run("keys", "create", "agent:ci", "--offline").lines[0]
    env = {
        "LOG_LEVEL": "DEBUG",
        "OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    origin = f"http://127.0.0.1:{port}"
    with running([COMITY, "serve", "-c", str(desk.folder / "comity.toml")], env) as program:
        program.wait_for_line(r"listening on (http://\S+)")
        yield program, origin, key


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncGenerator[Watched]:
    with issuing(SigningKey("one")) as issuer, collecting() as spans:
        async with scripted(modern=True) as server:

            @server.act("breaks")
            async def breaks(exchange: Exchange) -> None:
                await exchange.respond(500, b"broken")

            @server.act("tools/list")
            async def listed(exchange: Exchange) -> None:
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
                kept = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "private"}
                await exchange.result({"tools": tools, **kept})

            with _gateway(Desk(tmp_path), issuer, server.url, spans) as (program, origin, key):
                token = issuer.token(aud=origin)
                async with visiting_at(origin) as visitor:
                    # The server over HTTP is in this process: nothing here may block.
                    while not await asyncio.to_thread(answers, f"{origin}/ready"):
                        await asyncio.sleep(0.1)
                    yield Watched(visitor, program, server, spans, key, token)


async def _use(seen: Watched, credential: str, path: str) -> None:
    """Every door, in both eras, with what works and what does not."""
    shown = {"authorization": f"Bearer {credential}"}
    visitor = seen.visitor.other(path)
    visitor.session = dict(shown)
    await visitor.greet()
    visitor.session |= shown
    for tool in ("plain", "heard", "breaks", "no-such-tool", "http__plain", "piped__heard"):
        reply = await visitor.call(tool)
        seen.told += [json.dumps(frame) for frame in await reply.frames()]
        await seen.note(await visitor.call_modern(tool, **shown))
    await seen.note(await visitor.post(request(9, "no/such/method")))
    await seen.note(
        await visitor.send("POST", [*shown.items(), ("content-type", "application/json")], b"{")
    )
    await seen.note(await visitor.send("DELETE", visitor.session.items()))
    inside = request(1, "tools/list", {"_meta": ENVELOPE})
    inside["auth"] = {"type": "bearer", "token": credential}
    said = {"content-type": "application/json", "accept": BOTH, "mcp-protocol-version": MODERN}
    headers = {**said, "mcp-method": "tools/list"}.items()
    await seen.note(await visitor.send("POST", headers, json.dumps(inside).encode()))
    cut = f"Bearer {credential[:-3]}"
    await seen.note(await visitor.send("GET", [("authorization", cut)], path="/api/status"))
    for place in (
        "/api/status",
        "/api/keys",
        "/api/servers/piped",
        "/metrics",
        "/openapi.json",
        "/none",
    ):
        await seen.note(await visitor.send("GET", shown.items(), path=place))


async def test_attack_06_what_a_client_shows_itself_by_ends_at_the_door(tmp_path: Path) -> None:
    async with watched(tmp_path) as seen:
        for credential in (seen.key, seen.token):
            for path in ("/mcp", "/servers/piped/mcp", "/servers/http/mcp"):
                await _use(seen, credential, path)
        upstream = str([(each.path, each.pairs, each.body) for each in seen.server.heard])
        canaries = seen.canaries()
    everything = {
        "a server over HTTP": upstream,
        "an answer, or the process behind it": "\n".join(seen.told),
        "the log": seen.program.said,
        "a trace": str(seen.spans.spans),
        "the store": (tmp_path / "folder" / "comity.db").read_bytes().decode("latin-1"),
    }
    for place, text in everything.items():
        assert "tools/call" in text or place == "the store", place
        assert [each for each in canaries if each in text] == [], place
