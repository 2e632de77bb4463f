"""Packages of a test's own: an npm index on loopback, and wheels in a folder."""

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

# Both programs tell the version of the package, so that a test sees which one runs.
NODE_PROGRAM = """\
#!/usr/bin/env node
const readline = require('node:readline');
const { word } = require('greeting-words');
const tools = [{ name: 'greet', description: word + ' ABOUT', inputSchema: { type: 'object' } }];
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const asked = JSON.parse(line);
  const results = {
    initialize: { protocolVersion: '2025-11-25', capabilities: { tools: {} },
                  serverInfo: { name: 'greeter', version: 'VERSION' } },
    'tools/list': { tools }, ping: {},
    'tools/call': { content: [{ type: 'text', text: process.argv.slice(2).join(' ') }] },
  };
  if (asked.id === undefined) return;
  const result = results[asked.method];
  const error = { code: -32601, message: 'no such method' };
  const answer = { jsonrpc: '2.0', id: asked.id, ...(result ? { result } : { error }) };
  console.log(JSON.stringify(answer));
});
"""
PYTHON_PROGRAM = """\
import json, sys
def main():
    tools = [{"name": "greet", "description": "ABOUT", "inputSchema": {"type": "object"}}]
    for line in sys.stdin:
        asked = json.loads(line)
        results = {
            "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "greeter", "version": "VERSION"}},
            "tools/list": {"tools": tools}, "ping": {},
        }
        if "id" not in asked:
            continue
        result = results.get(asked["method"])
        error = {"code": -32601, "message": "no such method"}
        answer = {"error": error} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@dataclass
class NpmIndex:
    """The packages of an index, by name and version. A test adds some while it runs."""

    port: int = 0
    tarballs: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    requests: list[str] = field(default_factory=list[str])

    def publish(self, name: str, version: str, files: dict[str, str], **more: Any) -> None:
        manifest = {"name": name, "version": version, **more}
        data = _tarball({"package.json": json.dumps(manifest), **files})
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        place = f"http://127.0.0.1:{self.port}/{name}/-/{version}.tgz"
        self.tarballs[name, version] = data
        dist = {"tarball": place, "integrity": integrity}
        self.manifests.setdefault(name, {})[version] = {**manifest, "dist": dist}

    def publish_greeter(self, version: str, about: str = "greets") -> None:
        words = {"index.js": "exports.word = 'It';", "boot.js": "require('fs').writeFileSync"}
        scripts = {"postinstall": "touch /tmp/comity-test-install-script-ran"}
        self.publish("greeting-words", version, words, main="index.js", scripts=scripts)
        program = NODE_PROGRAM.replace("VERSION", version).replace("ABOUT", about)
        self.publish(
            "greeter-mcp",
            version,
            {"main.js": program},
            bin={"greeter-mcp": "main.js"},
            dependencies={"greeting-words": version},
        )

    def answer(self, path: str) -> bytes | None:
        self.requests.append(path)
        name, _, rest = unquote(path).lstrip("/").partition("/-/")
        if rest:
            return self.tarballs.get((name, rest.removesuffix(".tgz")))
        versions = self.manifests.get(name)
        if versions is None:
            return None
        latest = {"dist-tags": {"latest": [*versions][-1]}}
        return json.dumps({"name": name, **latest, "versions": versions}).encode()


def _tarball(files: dict[str, str]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, text in files.items():
            about = tarfile.TarInfo(f"package/{name}")
            about.size, about.mode = len(text.encode()), 0o755
            archive.addfile(about, io.BytesIO(text.encode()))
    return written.getvalue()


@contextmanager
def npm_index() -> Generator[NpmIndex]:
    index = NpmIndex()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = index.answer(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join(10)


def npm_environment(index: NpmIndex, folder: Path) -> dict[str, str]:
    return {
        "npm_config_registry": f"http://127.0.0.1:{index.port}/",
        "npm_config_cache": str(folder / "npm-cache"),
        "npm_config_userconfig": str(folder / "no-npmrc"),
        "npm_config_fetch_retries": "0",
    }


def write_wheel(folder: Path, version: str, about: str = "greets") -> Path:
    """Write a wheel with one program, `greeter-py`, into a folder that stands for an index."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"greeter_py-{version}.dist-info"
    program = PYTHON_PROGRAM.replace("VERSION", version).replace("ABOUT", about)
    files = {
        "greeter_py.py": program,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: greeter-py\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngreeter-py = greeter_py:main\n",
    }
    rows = [f"{name},," for name in (*files, f"{info}/RECORD")]
    wheel = folder / f"greeter_py-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": "\n".join(rows) + "\n"}.items():
            archive.writestr(name, text)
    return wheel


def uv_environment(wheels: Path, folder: Path) -> dict[str, str]:
    return {
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(wheels),
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "UV_PYTHON_DOWNLOADS": "never",
    }
