"""`servers/sandbox/egress.py`: ordinary HTTP clients work through the proxy, with real TLS."""

import asyncio
import json
import shutil
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from comity.http.client.dial import HttpOrigin, HttpProxy, open_tunnel
from comity.servers.sandbox.egress import EgressEvent, EgressProxy
from comity.servers.sandbox.egress import open_stream as open_network_stream
from comity.servers.sandbox.egress_rules import EgressRules
from tests.support.http_script import on_both_loops

pytestmark = pytest.mark.integration

SECONDS = 60
HOST = "api.example.com"
BODY = Random(19).randbytes(300_000)  # noqa: S311  # the same bytes in each run


def make_certificate(folder: Path) -> ssl.SSLContext:
    """Write `ca.pem`, a certificate for the host that it signs itself, and return its context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    secret = key.private_bytes(
        form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(form))
    (folder / "key.pem").write_bytes(secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


async def serve_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests with their own body, or with a fixed one. Connections are kept."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = BODY
            if b"content-length: " in head:
                size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(size)
            keeps = b"connection: close" not in head
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body))
            writer.write(b"\r\n" if keeps else b"Connection: close\r\n\r\n")
            writer.write(body)
            await writer.drain()
            if not keeps:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@dataclass
class ClientScene:
    """A proxy that grants one host, which has real web servers with and without TLS."""

    folder: Path
    proxy: EgressProxy
    url: str
    events: list[EgressEvent]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            **dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), self.url),
            "SSL_CERT_FILE": str(self.folder / "ca.pem"),
            "REQUESTS_CA_BUNDLE": str(self.folder / "ca.pem"),
            "NODE_EXTRA_CA_CERTS": str(self.folder / "ca.pem"),
        }


async def resolve(name: str) -> Sequence[str]:
    return ["93.184.216.34"] if name == HOST else []


@asynccontextmanager
async def client_scene(folder: Path) -> AsyncGenerator[ClientScene]:
    tls = make_certificate(folder)
    plain = await asyncio.start_server(serve_http, "127.0.0.1", 0)
    secured = await asyncio.start_server(serve_http, "127.0.0.1", 0, ssl=tls)
    ports = {80: plain.sockets[0].getsockname()[1], 443: secured.sockets[0].getsockname()[1]}

    async def connect(
        origin: HttpOrigin, addresses: Sequence[str], make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        assert addresses == ["93.184.216.34"]
        here = HttpOrigin(origin.scheme, origin.host, ports[origin.port])
        await open_tunnel(here, ["127.0.0.1"], None, make)

    events: list[EgressEvent] = []
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = EgressProxy(
        "files",
        listener,
        EgressRules([f"{HOST}:80", f"{HOST}:443"]),
        resolve=resolve,
        connect=connect,
        on_event=events.append,
    )
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    await proxy.start()
    try:
        yield ClientScene(folder, proxy, url, events)
    finally:
        await proxy.close()
        plain.close()
        secured.close()


async def run(environment: Mapping[str, str], *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
    )
    try:
        async with asyncio.timeout(SECONDS):
            said, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    return said.decode()


PYTHON_CLIENT = """
import json, sys
import LIBRARY as library
found = {}
kept = library.Session() if hasattr(library, "Session") else library.Client()
for scheme in ("http", "https"):
    answer = kept.get(f"{scheme}://api.example.com/file")
    found[scheme] = len(answer.content)
    body = b"line\\n" * 40_000
    found[f"{scheme} posted"] = kept.post(f"{scheme}://api.example.com/", data=body).content == body
found["refused"] = kept.get("http://evil.example.net/").status_code
try:
    kept.get("https://evil.example.net/")
except Exception as error:
    found["tunnel"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.parametrize("library", ["requests", "httpx2"])
async def test_clients_of_python_work_with_the_usual_variables(
    library: str, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    script = PYTHON_CLIENT.replace("LIBRARY", library)
    if library == "httpx2":
        script = script.replace("data=body", "content=body")
    async with client_scene(tmp_path) as scene:
        found = json.loads(await run(scene.environment, sys.executable, "-c", script))
        size = len(BODY)
        assert (found["http"], found["https"], found["refused"]) == (size, size, 403)
        assert found["http posted"]
        assert found["https posted"]
        assert "network.outbound for evil.example.net:443 is not granted" in found["tunnel"]


@on_both_loops
async def test_aiohttp_works_with_the_usual_variables(tmp_path: Path) -> None:
    async with client_scene(tmp_path) as scene:
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with aiohttp.ClientSession() as session:
            for scheme in ("http", "https"):
                where = f"{scheme}://{HOST}/"
                async with session.get(where, proxy=scene.url, ssl=trusted) as answer:
                    assert await answer.read() == BODY
                async with session.post(where, proxy=scene.url, ssl=trusted, data=BODY) as answer:
                    assert await answer.read() == BODY


async def test_curl_works_with_the_usual_variables(tmp_path: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    async with client_scene(tmp_path) as scene:
        for scheme in ("http", "https"):
            count = (
                "-s",
                "-S",
                "-o",
                str(tmp_path / "file"),
                "-w",
                "%{http_code} %{size_download}",
            )
            said = await run(
                {**scene.environment, "CURL_CA_BUNDLE": str(tmp_path / "ca.pem")},
                curl,
                *count,
                f"{scheme}://{HOST}/file",
            )
            assert said == f"200 {len(BODY)}"
            assert (tmp_path / "file").read_bytes() == BODY
        said = await run(scene.environment, curl, "-s", "http://evil.example.net/")
        assert said.startswith("network.outbound for evil.example.net:80 is not granted")


# The `fetch` of Node 20 has no proxy; this is what its usual proxy packages do.
NODE_CLIENT = """
const http = require('http'), https = require('https'), tls = require('tls');
const proxy = new URL(process.env.HTTPS_PROXY), host = 'api.example.com';
const target = host + ':443', headers = {host: target};
http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: target, headers})
  .on('connect', (answer, socket) => https.get(
    {host, path: '/file', createConnection: () => tls.connect({socket, servername: host})},
    (response) => {
      let size = 0;
      response.on('data', (data) => { size += data.length; });
      response.on('end', () => { console.log(size); process.exit(0); });
    }))
  .end();
"""


async def test_node_works_through_a_tunnel(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    async with client_scene(tmp_path) as scene:
        assert int(await run(scene.environment, node, "-e", NODE_CLIENT)) == len(BODY)


@on_both_loops
async def test_the_operators_proxy_is_asked_for_a_tunnel(tmp_path: Path) -> None:
    """The second proxy stands where that of an operator would, with names of its own."""
    async with client_scene(tmp_path) as beyond:
        listener = socket.create_server(("127.0.0.1", 0))
        events: list[EgressEvent] = []
        proxy = EgressProxy(
            "files",
            listener,
            EgressRules([f"{HOST}:80", f"{HOST}:443", "other.example.com:443"]),
            resolve=resolve,
            connect=open_network_stream(lambda origin: HttpProxy.of(beyond.url)),
            on_event=events.append,
        )
        await proxy.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"https://{HOST}/", proxy=url, ssl=trusted) as answer:
                assert await answer.read() == BODY
            async with session.get(f"http://{HOST}/", proxy=url) as answer:
                assert await answer.read() == BODY
            with pytest.raises(aiohttp.ClientHttpProxyError) as refused:
                await session.get("https://other.example.com/", proxy=url, ssl=trusted)
        assert refused.value.status == 502
        assert beyond.url not in refused.value.message
        await proxy.close()
        assert sorted(each.outcome for each in events) == ["allowed", "allowed", "failed"]
