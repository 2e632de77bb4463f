"""The registry's face of a gateway, asked over plain HTTP."""

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.conformance.ways import COMITY, Entry
from tests.interop.peers import ROOT

type Frame = dict[str, Any]

SECONDS = 60.0
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Said:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def error(self) -> Frame:
        assert set(self.body) == {"jsonrpc", "id", "error"}, self.body
        assert self.body["jsonrpc"] == "2.0"
        return self.body["error"]

    @property
    def data(self) -> Frame:
        return self.error["data"]


@dataclass(frozen=True)
class Face:
    origin: str

    def get(self, path: str) -> Said:
        return self.ask("GET", path)

    def call(self, tool: str, arguments: object) -> Said:
        return self.ask("POST", f"/tools/{tool}", json.dumps(arguments).encode(), JSON)

    def speak(self, method: str, **params: object) -> Said:
        frame = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        return self.ask("POST", "/tools", json.dumps(frame).encode(), JSON)

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Any = None) -> Said:
        link = http.client.HTTPConnection(urlsplit(self.origin).netloc, timeout=SECONDS)
        try:
            link.request(method, path, body, headers or {})
            answer = link.getresponse()
            read = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
            whole = json.loads(read) if found.get("content-type") == "application/json" else read
            return Said(answer.status, found, whole)
        finally:
            link.close()


def functions(named: str = "tests.conformance.servers.registered") -> Entry:
    """How a configuration names a server of a module's functions."""
    return {"command": COMITY, "args": ["dev", "serve-functions", named], "cwd": str(ROOT)}
