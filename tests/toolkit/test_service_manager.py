"""`comity serve` under a service manager: ready, alive and stopping, as systemd reads it."""

import os
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from comity.toolkit.service_manager import (
    READY_STATE,
    STOPPING_STATE,
    WATCHDOG_STATE,
    ServiceManager,
)
from tests.interop.processes import answers, running
from tests.support.fork_server import COMITY

SECONDS = 60.0


@pytest.fixture
def listening(tmp_path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(SECONDS)
        yield manager


def receive_until(manager: socket.socket, state: str) -> list[str]:
    """The lines of all messages up to the one with this state."""
    lines: list[str] = []
    while state not in lines:
        lines += manager.recv(4096).decode().splitlines()
    return lines


def test_no_manager_gets_nothing() -> None:
    ServiceManager({}).notify(READY_STATE)
    assert ServiceManager({"WATCHDOG_USEC": "1000000"}).watchdog_seconds == 0


def test_a_manager_that_is_gone_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).notify(READY_STATE)
    assert "cannot notify the service manager" in caplog.text


def test_a_socket_without_a_file_is_notified() -> None:
    name = f"comity-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(SECONDS)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).notify(READY_STATE, "STATUS=here")
        assert manager.recv(100) == b"READY=1\nSTATUS=here"


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdog_is_fed_where_it_is_meant_for_this_process(
    variables: dict[str, str], seconds: float
) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": "/run/systemd/notify", **variables})
    assert manager.watchdog_seconds == seconds


@pytest.mark.integration
@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_a_gateway_reports_that_it_listens_runs_and_stops(
    tmp_path: Path, listening: socket.socket, workers: tuple[str, ...]
) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}')
    told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    with running([COMITY, "serve", "-c", str(config), "--port", "0", *workers], told) as gateway:
        lines = receive_until(listening, READY_STATE)
        assert STOPPING_STATE not in lines
        lines += receive_until(listening, WATCHDOG_STATE)
        (status,) = {line for line in lines if line.startswith("STATUS=")}
        assert answers(f"{status.removeprefix('STATUS=Listening on ')}/health")
        os.kill(gateway.pid, signal.SIGTERM)
        assert READY_STATE not in receive_until(listening, STOPPING_STATE)
