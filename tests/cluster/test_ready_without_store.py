"""A gateway whose store is away says so at /ready, and does not flood its log."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.interop.processes import free_port, running

pytestmark = pytest.mark.timeout(180)


def _ready(origin: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{origin}/ready", timeout=10) as reply:  # noqa: S310 - loopback
            return reply.status, json.load(reply)["status"]
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["status"]


def test_a_gateway_whose_store_never_answered_is_not_ready(tmp_path: Path) -> None:
    config = tmp_path / "comity.toml"
    config.write_text(f'[store]\nurl = "postgresql://127.0.0.1:{free_port()}/none"\n')
    command = [str(Path(sys.executable).with_name("comity")), "serve", str(config), "--port", "0"]
    with running(command, {"COMITY_PEPPER": "p" * 64}) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        for _ in range(20):
            assert _ready(origin) == (503, "store unreachable")
        warnings = [line for line in program.said.splitlines() if "WARNING" in line]
    assert len(warnings) == len(set(warnings)), warnings
