"""On shutdown every open call gets an answer before its connection is closed, at every endpoint."""

import json
import sqlite3
import sys
import threading
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import ROOT
from tests.interop.processes import running

pytestmark = pytest.mark.timeout(240)

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
SERVER = """
import sys, time
for line in sys.stdin:
    import json
    said = json.loads(line)
    if said.get("method") == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "slow", "version": "1"}}
    elif said.get("method") == "tools/list":
        result = {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]}
    elif said.get("method") == "tools/call":
        sys.stderr.write("called\\n"); sys.stderr.flush()
        continue
    else:
        result = {}
    if "id" in said:
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}), flush=True)
"""


class OpenCall:
    """A call in a thread of its own; `body` is what came back before the connection closed."""

    def __init__(self, url: str, body: object, **headers: str) -> None:
        said = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        self._request = urllib.request.Request(url, json.dumps(body).encode(), said)  # noqa: S310
        self.status, self.body = 0, ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=120) as reply:  # noqa: S310
                self.status, self.body = reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            self.status, self.body = refused.code, refused.read().decode()
        except OSError as problem:
            self.body = repr(problem)

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def _call(name: str, **meta: object) -> dict[str, Any]:
    params = {"name": name, "arguments": {}, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


def _session(url: str) -> str:
    hello: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}}
    params = {**hello, "clientInfo": {"name": "t", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    said = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, json.dumps(body).encode(), said)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
        return reply.headers["mcp-session-id"]


def test_every_open_call_is_answered_before_the_gateway_is_gone(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SERVER)
    store = tmp_path / "c.db"
    config = tmp_path / "comity.toml"
    config.write_text(
        f'[store]\nurl = "sqlite:///{store}"\n[limits]\nshutdown_grace = "1s"\n'
        f'[[servers]]\nid = "slow"\ncommand = "{sys.executable}"\nargs = ["{script}"]\n'
        f'env = {{ PYTHONPATH = "{ROOT}" }}\n'
    )
    command = [
        str(Path(sys.executable).with_name("comity")),
        "serve",
        "-c",
        str(config),
        "--port",
        "0",
    ]
    with running(command, {"LOG_LEVEL": "INFO"}) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_for_line(r"server 'slow' is ready")
        every, one = f"{origin}/mcp", f"{origin}/servers/slow/mcp"
        calls = [
            OpenCall(every, _call("slow__wait"), Mcp_Session_Id=_session(every)),
            OpenCall(one, _call("wait"), Mcp_Session_Id=_session(one)),
            OpenCall(
                every,
                _call("slow__wait", **MODERN),
                Mcp_Protocol_Version="2026-07-28",
                Mcp_Method="tools/call",
                Mcp_Name="slow__wait",
            ),
            OpenCall(
                one,
                _call("wait", **MODERN),
                Mcp_Protocol_Version="2026-07-28",
                Mcp_Method="tools/call",
                Mcp_Name="wait",
            ),
            OpenCall(f"{origin}/tools/slow__wait", {}),
        ]
        counted = f"{origin}/metrics"
        program.wait_until(lambda: _under_way(counted) == len(calls))
        program.stop()
        for call in calls:
            call.join()
    for call in calls:
        for said in ("shutting down", "trace_id", '"unknown"', "retry"):
            assert said in call.body, (said, call.status, call.body)
    with closing(sqlite3.connect(store)) as opened:
        bodies = [
            json.loads(row[0]) for row in opened.execute("SELECT body FROM comity_audit_entries")
        ]
    outcomes = [each["details"].get("outcome") for each in bodies if each.get("details")]
    assert outcomes.count("interrupted") == len(calls)
    assert "cancelled" not in outcomes


def _under_way(url: str) -> int:
    with urllib.request.urlopen(url, timeout=30) as reply:  # noqa: S310 - loopback
        lines = reply.read().decode().splitlines()
    counts = (line.split()[-1] for line in lines if line.startswith("comity_calls_active{"))
    return int(sum(map(float, counts)))
