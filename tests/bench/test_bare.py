"""The bare relay relays both eras over both transports, and stays small: it is a yardstick."""

import json
from pathlib import Path

import pytest

from bench import bare
from bench.contenders import CONTENDERS, STUB, Way
from bench.eras import Era, call_body, http_headers
from bench.load import Budget
from bench.load_http import HttpTarget
from bench.processes import Running
from bench.relay import PATHS, split


@pytest.mark.parametrize("path", PATHS)
async def test_calls_come_back_to_who_made_them(path: str, tmp_path: Path) -> None:
    transport, era = split(path)
    with Running([*STUB, "http"]) as stub:
        upstream = [f"http://127.0.0.1:{stub.port()}/mcp"]
        way = Way(era, upstream if transport == "http" else [*STUB, "stdio"], tmp_path)
        with Running(CONTENDERS["bare"].command(way)) as relay:
            target = HttpTarget("127.0.0.1", relay.port(), "/mcp", era)
            found = await target.measure(8, Budget(100, 20.0), relay.cpu_seconds)
            text_id = await _call_with_a_text_id(target, era)
    assert found.calls == 100
    assert 0 < found.relay_cpu_seconds < 20
    assert text_id == "mine"


async def _call_with_a_text_id(target: HttpTarget, era: Era) -> object:
    body = json.dumps({**json.loads(call_body(era)), "id": "mine"}).encode()
    headers = http_headers(era, "tools/call", "echo", target.sessions[0])
    return json.loads((await target.ask(body, headers)).body)["id"]


def test_the_bare_relay_is_shorter_than_150_lines() -> None:
    assert len(Path(bare.__file__).read_text(encoding="utf-8").splitlines()) < 150
