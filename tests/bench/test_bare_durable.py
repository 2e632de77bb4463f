"""The durable bare relay commits the request and the answer of each call before it replies."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from bench.contenders import STUB
from bench.load import Budget
from bench.load_http import HttpTarget
from bench.processes import Running


async def test_each_call_leaves_two_events(tmp_path: Path) -> None:
    store = tmp_path / "events.db"
    with Running([*STUB, "http"]) as stub:
        upstream = f"http://127.0.0.1:{stub.port()}/mcp"
        program = [sys.executable, "-m", "bench.bare_durable", str(store), upstream]
        with Running(program) as relay:
            target = HttpTarget("127.0.0.1", relay.port(), "/mcp", "modern")
            found = await target.measure(8, Budget(50, 30.0), relay.cpu_seconds)
    with closing(sqlite3.connect(store)) as connection:
        (events,) = connection.execute("SELECT count(*) FROM bench_events").fetchone()
    # One call of each connection is made before the measurement.
    assert events == 2 * (found.calls + 8)
