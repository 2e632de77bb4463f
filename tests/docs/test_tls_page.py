"""The proxies of the page about TLS: each passes on calls, streams and WebSockets."""

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from comity.app.settings_reader import load_settings
from tests.docs.pages import ROOT, snippets_of
from tests.interop.peers import locked_environment
from tests.interop.processes import accepts, free_port, running
from tests.support.credentials import GivenOut
from tests.support.visitor import LATEST, visiting

PAGE = ROOT / "docs" / "operate" / "tls.md"
LOCK = ROOT / "tests" / "interop" / "python" / "proxies.lock"
NAME = "gateway.example.org"
SECONDS = 60.0
HELLO = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": LATEST,
            "capabilities": {},
            "clientInfo": {"name": "reader", "version": "1"},
        },
    }
).encode()
WEBSOCKET = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)

pytestmark = pytest.mark.integration


def texts(language: str) -> list[str]:
    return [each.text for each in snippets_of(PAGE) if each.language == language]


class Ground:
    """A folder with a certificate, and the ports that take the place of those on the page."""

    def __init__(self, folder: Path, gateway: int) -> None:
        self.folder = folder
        self.port = free_port()
        self.gateway = gateway
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        subject = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
        files = ["-out", str(self.certificate), "-keyout", str(self.key)]
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
        subprocess.run([*make, *files, *subject], check=True, capture_output=True, timeout=60)

    def adapt(self, text: str) -> str:
        return (
            text.replace("127.0.0.1:2664", f"127.0.0.1:{self.gateway}")
            .replace(f"/etc/ssl/{NAME}.crt", str(self.certificate))
            .replace(f"/etc/ssl/{NAME}.key", str(self.key))
        )

    def write(self, name: str, text: str) -> str:
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        return str(file)


def caddy(ground: Ground) -> list[str]:
    (text,) = texts("caddyfile")
    # The page lets Caddy fetch a certificate, which a test cannot.
    opening, rest = f"{NAME} {{\n", f"\ttls {ground.certificate} {ground.key}\n"
    assert opening in text
    site = ground.adapt(text).replace(opening, opening + rest)
    options = f"{{\n\tadmin off\n\tauto_https disable_redirects\n\thttps_port {ground.port}\n}}\n"
    config = ground.write("Caddyfile", options + site)
    program = Path(locked_environment("proxies", LOCK)).with_name("caddy")
    return [str(program), "run", "--config", config, "--adapter", "caddyfile"]


def traefik(ground: Ground) -> list[str]:
    static, routes = texts("yaml")
    file = ground.write("routes.yaml", ground.adapt(routes))
    static = static.replace('":443"', f'"127.0.0.1:{ground.port}"')
    config = ground.write("traefik.yaml", static.replace("/etc/traefik/comity.yaml", file))
    program = Path(locked_environment("proxies", LOCK)).with_name("traefik")
    return [str(program), f"--configFile={config}"]


def nginx(ground: Ground) -> list[str]:
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not installed")
    (text,) = texts("nginx")
    site = ground.adapt(text).replace("listen 443 ssl;", f"listen 127.0.0.1:{ground.port} ssl;")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {ground.folder};\n" for kind in kinds)
    around = f"daemon off;\npid {ground.folder}/pid;\nerror_log stderr;\nevents {{}}\n"
    config = ground.write("nginx.conf", f"{around}http {{\naccess_log off;\n{folders}{site}\n}}\n")
    return [program, "-c", config, "-p", str(ground.folder)]


async def ask(ground: Ground, request: str, body: bytes = b"", until: bytes = b"\r\n\r\n") -> str:
    """The beginning of an answer over TLS."""
    trusted = ssl.create_default_context(cafile=ground.certificate)
    trusted.set_alpn_protocols(["http/1.1"])
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", ground.port, ssl=trusted, server_hostname=NAME
        )
        try:
            writer.write(f"{request}Host: {NAME}\r\n\r\n".encode() + body)
            return (await reader.readuntil(until)).decode()
        finally:
            writer.transport.abort()


async def until_ready(ground: Ground) -> None:
    """Wait for the routes and the certificate, which Traefik loads after it listens."""
    async with asyncio.timeout(SECONDS):
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                if " 200" in await ask(ground, "GET /ready HTTP/1.1\r\n"):
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("proxy", [caddy, nginx, traefik])
async def test_a_proxy_of_the_page_passes_on_calls_streams_and_websockets(
    proxy: Callable[[Ground], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "comity.toml").write_text(
        next(text for text in texts("toml") if "127.0.0.1/32" in text), encoding="utf-8"
    )
    settings = load_settings(tmp_path / "comity.toml", {})
    given = GivenOut()
    key = f"Authorization: Bearer {given.give('agent:reader')}\r\n"
    async with visiting(
        register=given.register,
        identity_mode=settings.identity.mode,
        identity_public_url=settings.identity.public_url,
        allowed_hosts=settings.allowed_hosts,
        trusted_proxies=settings.trusted_proxies,
        topics_access="public",
    ) as visitor:
        ground = Ground(tmp_path, int(visitor.place.address.rpartition(":")[2]))
        with running(await asyncio.to_thread(proxy, ground)) as program:
            await asyncio.to_thread(program.wait_until, lambda: accepts(ground.port))
            await until_ready(ground)
            assert " 401" in await ask(ground, "GET /mcp HTTP/1.1\r\n")
            post = f"POST /mcp HTTP/1.1\r\n{key}Content-Type: application/json\r\n"
            post += (
                f"Accept: application/json, text/event-stream\r\nContent-Length: {len(HELLO)}\r\n"
            )
            answer = await ask(ground, post, HELLO, b"serverInfo")
            session = next(
                line for line in answer.split("\r\n") if line.lower().startswith("mcp-session-id")
            )
            # The head of a stream comes at once, although nothing is said on the stream.
            stream = f"GET /mcp HTTP/1.1\r\n{key}{session}\r\nAccept: text/event-stream\r\n"
            head = await ask(ground, f"{stream}MCP-Protocol-Version: {LATEST}\r\n")
            assert "text/event-stream" in head
            joined = await ask(ground, f"GET /ws?topic=t HTTP/1.1\r\n{key}{WEBSOCKET}")
            assert joined.startswith("HTTP/1.1 101 ")
