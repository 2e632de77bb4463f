"""`comity demo` in a process of its own: it leads through an approval and leaves nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from comity.app.demo import service
from comity.app.demo.service import DemoGateway, demo_config
from comity.app.settings_reader import load_settings
from comity.cli.api_client import ApiClient, find_gateway_by_url
from comity.cli.main import comity
from comity.errors import Misconfigured

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
SECONDS = 120.0


class RunningDemo:
    """The process, with the lines that it has printed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._queue: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for a line that contains this."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                line = self._queue.get(timeout=max(deadline - time.monotonic(), 0.01))
            except Empty:
                raise AssertionError([pattern, *self.lines]) from None
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found

    def end(self) -> int:
        status = self.process.wait(SECONDS)
        while True:
            try:
                self.lines.append(self._queue.get(timeout=0.5))
            except Empty:
                return status


@contextmanager
def a_demo(folder: Path, *options: str) -> Generator[RunningDemo]:
    (folder / "tmp").mkdir()
    environ = {
        **os.environ,
        "COMITY_STATE_DIR": str(folder / "state"),
        "TMPDIR": str(folder / "tmp"),
        "COLUMNS": "80",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "comity.cli", "demo", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
    )
    try:
        yield RunningDemo(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def client_of(url: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> ApiClient:
    """A client with the operator token of the demo."""
    monkeypatch.setenv("COMITY_STATE_DIR", str(folder / "state"))
    record = find_gateway_by_url(url)
    assert record is not None
    return ApiClient(url, token=record.token, key="")


def guided(demo: RunningDemo) -> tuple[str, str]:
    """The URL of the gateway, and the id of the guided request."""
    found = demo.until(r"open (http://[0-9.:]+)/approvals/([0-9a-v]{26})")
    demo.until("or run comity approve")
    return found[1], found[2]


def eventually[T](find: Callable[[], T | None]) -> T:
    """What a function finds, as soon as it finds something."""
    deadline = time.monotonic() + SECONDS
    while True:
        if found := find():
            return found
        assert time.monotonic() < deadline
        time.sleep(0.2)


def envelopes(client: ApiClient, kind: str, sender: str) -> list[dict[str, Any]]:
    """The envelopes of a sender in the topic of the demo, the newest first."""
    found = client.get("topics", "refunds", "envelopes")["envelopes"]
    return [each for each in found if each["kind"] == kind and each["sender"] == sender]


def children_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=30)
    return alive == []


def test_a_configuration_of_the_user_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_STATE_DIR", str(tmp_path / "state"))
    config = tmp_path / "comity.toml"
    config.write_text("port = 1\n")
    demo = CliRunner().invoke(comity, ["demo", "--keep", str(tmp_path)])
    assert isinstance(demo.exception, Misconfigured), demo.output
    assert config.read_text() == "port = 1\n"
    config.write_text(demo_config(tmp_path))
    # It would replace the handlers of pytest.
    monkeypatch.setattr(service, "_log_into", Path)
    monkeypatch.setattr(DemoGateway, "run", _do_nothing)
    assert CliRunner().invoke(comity, ["demo", "--keep", str(tmp_path)]).exception is None


async def _do_nothing(demo: DemoGateway) -> None:
    pass


def test_an_approval_through_the_api_lets_the_agent_go_on_and_ends_a_short_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_demo(tmp_path, "--once") as demo:
        url, id = guided(demo)
        started = children_of(demo.process)
        assert len(started) >= 4
        client = client_of(url, monkeypatch, tmp_path)
        client.post("approvals", id, "answer", body={"verdict": "accept"})
        demo.until("You approved it, so Comity sent the call.")
        demo.until("agent:billing got: refunded 40 EUR for order A-1042")
        assert demo.end() == 0
        assert all_gone(started)
    assert not list((tmp_path / "tmp").glob("comity-demo-*")), "the temporary folder is removed"
    links = [line for line in demo.lines if "/login/link?token=" in line]
    assert len(links) == 1
    rows = [line for line in demo.lines if line not in links]
    assert max(map(len, rows)) <= 80
    assert len(rows) + -(-len(links[0]) // 80) <= 15


def test_a_denial_is_told_and_the_agents_go_on_until_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    with a_demo(tmp_path, "--keep", str(kept)) as demo:
        url, id = guided(demo)
        client = client_of(url, monkeypatch, tmp_path)
        client.post("approvals", id, "answer", body={"verdict": "decline"})
        demo.until("You denied it, so the call did not run.")
        demo.until("Press Ctrl-C")
        deadline = time.monotonic() + SECONDS
        wanted = {"TOOL_EXECUTED", "TOOL_BLOCKED"}
        while not all(kind in json.dumps(client.get("audit")) for kind in wanted):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        started = children_of(demo.process)
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 0
        assert all_gone(started)
    assert (kept / "demo.db").exists()
    assert "Traceback" not in "\n".join(demo.lines)


def test_a_proposal_in_the_topic_waits_for_the_person_and_then_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_demo(tmp_path) as demo:
        client = client_of(guided(demo)[0], monkeypatch, tmp_path)
        proposal = eventually(
            lambda: envelopes(client, "mcp/proposal:tools/call:refund", "agent:research")
        )[0]
        assert proposal["to"] == ["server:payments"]
        members = {
            each["participantId"] for each in client.get("topics", "refunds")["participants"]
        }
        assert {"agent:research", "agent:billing", "person:local"} <= members
        question = envelopes(client, "chat", "agent:research")[-1]
        advice = eventually(lambda: envelopes(client, "chat", "agent:billing"))
        assert question["id"] in [each["correlation_id"] for each in advice]

        def pending() -> str | None:
            found = client.get("approvals")["approvals"]
            ids = [each["id"] for each in found if each["requester"] == "agent:research"]
            return ids[0] if ids else None

        client.post("approvals", eventually(pending), "answer", body={"verdict": "accept"})
        run = eventually(
            lambda: envelopes(client, "mcp/response:tools/call:refund", "server:payments")
        )[0]
        assert "refunded 5 EUR for order A-1041" in json.dumps(run["payload"])
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 0
    assert "Traceback" not in "\n".join(demo.lines)


def test_a_live_server_pushes_takes_part_in_turns_and_keeps_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_demo(tmp_path) as demo:
        client = client_of(guided(demo)[0], monkeypatch, tmp_path)

        def a_turn(conversation: str) -> Callable[[], dict[str, Any] | None]:
            def find() -> dict[str, Any] | None:
                turns = client.get("turns")["turns"]
                found = [each for each in turns if each["conversation"] == conversation]
                return next((each for each in found if each["state"] == "done"), None)

            return find

        asked = eventually(a_turn("topic:refunds"))
        assert (asked["injected"], asked["rewrote"]) == (["orders"], ["orders"])
        assert "[address removed]" in asked["reply"]
        assert "@" not in asked["reply"]
        # A server has its hooks in the turns that it causes, too.
        pushed = eventually(a_turn("returns"))
        assert (pushed["cause"]["origin"], pushed["injected"]) == ("push", ["orders"])
        assert {each["state"] for each in client.get("pushes")["pushes"]} <= {"done", "waiting"}
        (state,) = eventually(lambda: client.get("state")["state"])
        assert (state["server"], state["feature_set"]) == ("orders", "orders.plan")
        usage = client.get("models", "usage")["usage"]
        assert {each["model"] for each in usage} == {"quick", "thorough"}
        assert all(each["cost"] > 0 for each in usage)
        (server,) = client.get("features")["servers"]
        is_enabled = {each["feature"]: each["enabled"] for each in server["features"]}
        assert [name for name, enabled in is_enabled.items() if not enabled] == ["orders.export"]
        assert [each["id"] for each in client.get("channels")["channels"]] == ["mail:support"]


def test_the_configuration_of_the_demo_is_valid() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "comity.toml"
        file.write_text(demo_config(Path(folder)))
        settings = load_settings(file, {})
    assert [each.id for each in settings.servers] == [
        *("notes", "payments", "reports", "flaky", "orders")
    ]
    assert settings.policy.default_policy == "deny"
