"""What every test run carries: the ledger, a test bench for plugins, how properties are sought."""

import contextlib
import json
import logging
import os
import shutil
import signal
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

FULL = (
    "/scale/",
    "cluster/test_topics_chaos",
    "deploy/test_clone_package",
    "docs/test_pages_from_packages",
    "interop/test_crowd",
    "interop/test_matrix.py",
    "interop/test_soak",
    "live/test_hooks_stress",
    "security/test_input_floods",
    "sandbox/test_public_servers",
)
"""Soaks, chaos, sizes and whole matrices: only `scripts/test --full` runs them."""

INTEGRATION = (
    "/bench/",
    "/cli/",
    "/cluster/",
    "/conformance/",
    "/contracts/",
    "/deploy/",
    "/docs/",
    "/interop/",
    "/sdk/",
    "/security/",
)
"""Folders whose tests start processes or need an engine; modules elsewhere have the mark."""

QUARANTINE = Path(__file__).with_name("quarantine.toml")

LONGEST = (
    "test_soak",
    "test_matrix",
    "test_public_documents",
    "test_pushes_once",
    "test_live_pages",
    "servers/test_supervisor",
    "test_streaming",
    "test_approval_matrix",
    "test_crash_proof",
    "test_topics_chaos",
    "test_bridge",
    "test_stdio",
    "cluster/test_nodes",
    "test_hostile",
    "approvals/test_store.py",
    "/scale/",
    "/cluster/",
    "/interop/",
    "/docs/",
    "/conformance/",
)

pytest_plugins = [
    # First, because parameters of Comity hold the clock that they find at their import.
    "tests.kit.plugin",
    "pytester",
    "tests.ledger.plugin",
    "tests.support.figures",
    "tests.support.store_fixtures",
]

# A property never fails for being slow: the machine may be busy with something else. In CI one
# commit always tries the same examples; elsewhere each run tries new ones.
settings.register_profile(
    "comity",
    deadline=None,
    # Always the same ones there: more of them would only take longer.
    max_examples=30 if os.environ.get("CI") == "true" else 100,
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("comity")


def pytest_configure(config: pytest.Config) -> None:
    """Gateways of this run, or of this worker of it, leave their records in a folder of its own."""
    folder = os.environ["COMITY_STATE_DIR"] = tempfile.mkdtemp(prefix="comity-state-")
    # A gateway whose configuration names no store keeps nothing, unless a test wants that.
    os.environ["DATABASE_URL"] = "memory"
    # Most test servers leave files and open connections by which a test sees what they did. What
    # is confined by default is proved in tests/servers/sandbox and on the pages of the docs.
    os.environ["COMITY_POLICY_SANDBOX"] = "none"
    # A gateway that was started for a client on pipes is not needed any more after its test.
    os.environ["COMITY_IDLE_SECONDS"] = "1"
    config.add_cleanup(lambda: _end_gateways(Path(folder)))


def _end_gateways(folder: Path) -> None:
    """End each gateway that has left its record there, and remove the records."""
    for record in (folder / "gateways").glob("[0-9]*.json"):
        with contextlib.suppress(OSError, ValueError):
            process_id = json.loads(record.read_bytes())["pid"]
            # A gateway that ran inside this process leaves the id of pytest itself. A signal to it
            # would make a run without workers fail after its last test has passed.
            if process_id != os.getpid():
                os.kill(process_id, signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers = ("fast", "integration", "full")
    parser.addoption("--tier", choices=tiers, default="full", help="how much of the tests to run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of higher tiers, and begin with those that take longest."""
    tier = str(config.getoption("--tier"))
    deselected = [item for item in items if not _belongs(item, tier)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        skipped = set(map(id, deselected))
        items[:] = [item for item in items if id(item) not in skipped]
    _give_quarantined_tests_more_tries(items)
    items.sort(key=_rank)


def _give_quarantined_tests_more_tries(items: list[pytest.Item]) -> None:
    entries = tomllib.loads(QUARANTINE.read_text()).get("test", [])
    quarantined = {entry["id"] for entry in entries}
    for item in items:
        if {item.nodeid, item.nodeid.partition("[")[0]} & quarantined:
            item.add_marker(pytest.mark.flaky(reruns=2))


def _rank(item: pytest.Item) -> int:
    place = item.path.as_posix()
    return next((rank for rank, part in enumerate(LONGEST) if part in place), len(LONGEST))


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """What one module's tests set in the environment is nothing that the next one's may meet."""
    before = dict(os.environ)
    yield
    left = {name for name, value in os.environ.items() if before.get(name) != value}
    assert left <= {"PYTEST_CURRENT_TEST"}, f"left in the environment: {sorted(left)}"


@pytest.fixture(autouse=True, scope="module")
def log() -> Iterator[None]:
    """A handler that one module's tests leave would hold the next one's messages back."""
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)


def _belongs(item: pytest.Item, tier: str) -> bool:
    place = item.path.as_posix()
    if any(part in place for part in FULL):
        return tier == "full"
    is_integration = any(part in place for part in INTEGRATION) or item.get_closest_marker(
        "integration"
    )
    return tier != "fast" or not is_integration
