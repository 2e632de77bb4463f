"""Every kind of body is a valid call whose length varies, and the bare relay carries it."""

import json
from pathlib import Path

import pytest

from bench.bodies import BODIES, VARIANTS, Body
from bench.contenders import CONTENDERS, STUB, Way
from bench.eras import CallTemplate, Era, call_bodies
from bench.load import Budget
from bench.load_http import HttpTarget
from bench.processes import Running


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.parametrize("body", BODIES)
def test_variants_are_calls_of_different_lengths(body: Body, era: Era) -> None:
    template = CallTemplate.cut(*call_bodies(era, body=body))
    calls = [template.numbered(10_000_100 + variant) for variant in range(VARIANTS)]
    assert len({len(call) for call in calls}) == VARIANTS
    for number, call in enumerate(calls, 10_000_100):
        message = json.loads(call)
        assert message["id"] == number
        assert message["params"]["arguments"]["text"].startswith(f"call {number}, please")
        assert ("progressToken" in message["params"].get("_meta", {})) == (body == "progress")


@pytest.mark.parametrize("body", BODIES)
async def test_bare_relay_carries_body(body: Body, tmp_path: Path) -> None:
    with Running([*STUB, "http"]) as stub:
        way = Way("modern", [f"http://127.0.0.1:{stub.port()}/mcp"], tmp_path)
        with Running(CONTENDERS["bare"].command(way)) as relay:
            target = HttpTarget("127.0.0.1", relay.port(), "/mcp", "modern")
            found = await target.measure(4, Budget(40, 20.0), relay.cpu_seconds, body)
    assert found.calls == 40
