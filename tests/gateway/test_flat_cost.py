"""A call costs the same however many servers, tools, grants and sessions the gateway has."""

from dataclasses import replace

import pytest

from bench.call_budget import measure
from bench.call_driver import CallPath
from bench.realm import GRANTS_EACH
from tests.pace import at_length
from tests.support.figures import Tell

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

SERVERS, TOOLS, GRANTS, SESSIONS = at_length(
    (1_000, 100_000, 100_000, 10_000), (100, 5_000, 5_000, 500)
)
MOST_RATIO = 1.1
# A safe call waits for no other thread, so that its figures are exact.
SMALL = CallPath("small", "handshake", "handshake", is_governed=True, risk="safe")


@pytest.mark.parametrize("is_merged", [False, True], ids=["one-server", "all-servers"])
def test_call_cost_does_not_depend_on_size(is_merged: bool, tell: Tell) -> None:
    small = replace(SMALL, is_merged=is_merged)
    large = replace(
        small,
        name="large",
        servers=SERVERS,
        tools_per_server=TOOLS // SERVERS,
        principals=GRANTS // GRANTS_EACH,
        sessions=SESSIONS,
    )
    few, _ = measure(small)
    many, _ = measure(large)
    tell(
        f"{SERVERS} servers, {TOOLS} tools, {GRANTS} grants and {SESSIONS} sessions: "
        f"{many['python']} Python calls, with one of each {few['python']}"
    )
    for kind in ("python", "c_calls", "decodes", "encodes"):
        assert many[kind] <= MOST_RATIO * few[kind], kind
