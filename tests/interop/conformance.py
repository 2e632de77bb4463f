"""Run the official conformance suite against its fixture server, through Comity or directly.

    scripts/conformance 2025-11-25|2026-07-28 [--upstream http|stdio] [--era other]
                        [--governed] [--direct] [--client]

The suite decides what it scores. One thing it does not do is notice checks that vanish: a reply
it may not judge (plain JSON where it looks for a stream) is counted neither as passed nor as
failed. So fewer passes than the fixture has by itself also fail the run.

With `--era other` the fixture is pinned to the era that the suite does not speak, and each scenario
is compared with the fixture by itself: what differs must stand, with its reason, in
docs/design/era-differences.md, and nothing may stand there that does not differ.

With `--governed` Comity asks everybody for credentials and judges every call; the suite, which can
show none, comes through a proxy that shows a key for it.

With `--client` the suite judges Comity as a client that signs in: its scenarios of authorization.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.client_conformance import run_scenarios
from tests.interop.governance import governed
from tests.interop.peers import SERVERS, node, official_fixture, package
from tests.interop.processes import comity, http_server

_SUITE_SECONDS = 300
_TRIES = 3
DIFFERENCES = Path(__file__).parents[2] / "docs" / "design" / "era-differences.md"
OTHER_VERSION = {"2025-11-25": "2026-07-28", "2026-07-28": "2025-11-25"}

# How many checks the fixture passes. Over stdio it cannot close a stream in the middle of a call,
# which is one check of the 84 (server-sse-disconnect-resume).
_PASSES = {
    ("2025-11-25", "http"): 84,
    ("2025-11-25", "stdio"): 83,
    ("2026-07-28", "http"): 168,
    ("2026-07-28", "stdio"): 163,
}

_LEAST_CLIENT_SCENARIOS = {"2025-11-25": 15, "2026-07-28": 27}


@dataclass(frozen=True)
class Outcome:
    passed: int
    failed: int
    scored_failures: int
    unscored: frozenset[str]
    scenarios: Mapping[str, tuple[int, int]]

    @classmethod
    def read(cls, report: str) -> "Outcome":
        """What the suite's own summary says, one line for each scenario."""
        summary = report.partition("=== SUMMARY ===")[2]
        found = re.findall(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed$", summary, re.MULTILINE)
        unscored = frozenset(re.findall(r"^  [✓✗] (\S+) \([\w-]+\)$", summary, re.MULTILINE))
        return cls(
            passed=sum(int(passed) for _, passed, _ in found),
            failed=sum(int(failed) for _, _, failed in found),
            scored_failures=sum(int(failed) for name, _, failed in found if name not in unscored),
            unscored=unscored,
            scenarios={name: (int(passed), int(failed)) for name, passed, failed in found},
        )

    def worse_than(self, other: "Outcome") -> frozenset[str]:
        """The scenarios in which less passed, or more failed."""
        return frozenset(
            name
            for name, (passed, failed) in other.scenarios.items()
            if (mine := self.scenarios.get(name, (0, 0)))[0] < passed or mine[1] > failed
        )

    def closing_line(self, revision: str, way: str) -> str:
        if revision == "2025-11-25":
            figures = f"{self.passed}/{self.passed + self.failed}"
        else:
            figures = f"{self.passed} passed, {self.failed} failed"
            figures += f", {self.scored_failures} scored failures"
        return f"conformance {revision} ({way}): {figures}"


def main() -> int:
    """Fail only what fails each time: the suite has deadlines, and a machine may be busy."""
    asked = _arguments()
    run = _judge_client if asked.client else _compare if asked.era == "other" else _judge
    for attempt in range(1, _TRIES + 1):
        if not run(asked):
            return 0
        print(f"conformance {asked.revision}: try {attempt} of {_TRIES} failed")
    return 1


def _judge_client(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="comity-conformance-") as folder:
        outcomes = asyncio.run(run_scenarios(asked.revision, Path(folder)))
    for each in outcomes:
        print(f"{'✗' if each.problems else '✓'} {each.scenario}: {each.passed} passed")
        if each.problems:
            print(*each.problems, each.said[-2_000:], sep="\n")
    failed = sum(bool(each.problems) for each in outcomes)
    passed, whole = sum(each.passed for each in outcomes), len(outcomes)
    figures = f"{whole - failed} of {whole} scenarios, {passed} checks passed"
    print(f"conformance {asked.revision} (client authorization): {figures}")
    return int(failed or whole < _LEAST_CLIENT_SCENARIOS[asked.revision])


def _compare(asked: argparse.Namespace) -> int:
    """The suite on the bridge, scenario by scenario beside the fixture by itself."""
    outcomes: list[Outcome] = []
    for direct in (True, False):
        with tempfile.TemporaryDirectory(prefix="comity-conformance-") as folder:
            upstream, era = ("http", "auto") if direct else (asked.upstream, asked.pinned)
            way = _Way(upstream, era, direct, asked.governed)
            with _server_under_test(way, Path(folder)) as url:
                _, report = _run_suite(url, asked.revision, Path(folder) / "checks")
            outcome = Outcome.read(report)
            if not direct:
                print(*_worse_than_passed(Path(folder) / "checks", outcome.unscored), sep="\n")
        outcomes.append(outcome)
    alone, bridged = outcomes
    listed = listed_differences(DIFFERENCES.read_text(), asked.revision)
    worse = bridged.worse_than(alone)
    for name in sorted(worse | listed):
        said = "listed" if name in worse & listed else "NOT LISTED" if name in worse else "GONE"
        mine, by_itself = bridged.scenarios.get(name, (0, 0)), alone.scenarios.get(name, (0, 0))
        print(f"{said:<10} {name}: {mine[0]} passed, {mine[1]} failed; alone {by_itself}")
    same = len(alone.scenarios) - len(worse)
    way = f"{asked.upstream} pinned to {asked.pinned}"
    print(f"{same} of {len(alone.scenarios)} scenarios as without Comity")
    print(bridged.closing_line(asked.revision, way))
    return int(worse != listed or not alone.scenarios)


def listed_differences(page: str, revision: str) -> frozenset[str]:
    """The scenarios that the page gives a reason for, from the rows of its tables."""
    return frozenset(re.findall(rf"^\| {revision} \| `([\w-]+)` \| \S", page, flags=re.MULTILINE))


def _judge(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="comity-conformance-") as folder:
        way = _Way(asked.upstream, "auto", asked.direct, asked.governed)
        with _server_under_test(way, Path(folder)) as url:
            status, report = _run_suite(url, asked.revision, Path(folder) / "checks")
        print(report.partition("=== SUMMARY ===")[2].strip() or report)
        outcome = Outcome.read(report)
        print(*_worse_than_passed(Path(folder) / "checks", outcome.unscored), sep="\n")
    least = _PASSES[asked.revision, asked.upstream]
    if outcome.passed < least:
        print(f"{outcome.passed} checks passed, and the fixture by itself passes {least}")
    print(outcome.closing_line(asked.revision, str(way)))
    return int(bool(status or outcome.scored_failures or outcome.passed < least))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("revision", choices=["2025-11-25", "2026-07-28"])
    parser.add_argument("--upstream", choices=["http", "stdio"], default="http")
    parser.add_argument("--era", choices=["same", "other"], default="same")
    parser.add_argument("--governed", action="store_true", help="with credentials and grants")
    parser.add_argument("--client", action="store_true", help="judge Comity as a client")
    parser.add_argument("--direct", action="store_true", help="leave Comity out, to compare")
    asked = parser.parse_args()
    asked.pinned = OTHER_VERSION[asked.revision]
    if asked.direct and asked.upstream == "stdio":
        parser.error("the suite speaks HTTP only: without Comity there is no way to stdio")
    return asked


@dataclass(frozen=True)
class _Way:
    """How the suite comes to its fixture server."""

    upstream: str
    era: str
    direct: bool
    governed: bool

    def __str__(self) -> str:
        reached = "direct" if self.direct else self.upstream
        return f"{reached}, governed" if self.governed else reached


@contextmanager
def _server_under_test(way: _Way, folder: Path) -> Generator[str]:
    path = {"PYTHONPATH": str(official_fixture())}
    if way.upstream == "stdio":
        launcher = str(SERVERS / "everything_stdio.py")
        entry = {"command": sys.executable, "args": [launcher], "env": path, "protocol": way.era}
        with _through_comity(entry, way, folder) as url:
            yield url
        return
    with http_server(_fixture_command, path) as origin:
        if way.direct:
            yield f"{origin}/mcp"
            return
        entry = {"type": "http", "url": f"{origin}/mcp", "protocol": way.era}
        with _through_comity(entry, way, folder) as url:
            yield url


@contextmanager
def _through_comity(entry: dict[str, Any], way: _Way, folder: Path) -> Generator[str]:
    servers = {"everything": entry}
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    with governed(servers, folder) if way.governed else comity(config) as origin:
        yield f"{origin}/servers/everything/mcp"


def _fixture_command(port: int) -> list[str]:
    quiet = ["--port", str(port), "--log-level", "WARNING"]
    return [sys.executable, "-m", "mcp_everything_server", *quiet]


def _run_suite(url: str, revision: str, checks: Path) -> tuple[int, str]:
    suite = package("@modelcontextprotocol/conformance", "dist/index.js")
    command = [node(), suite, "server", "--url", url, "--requirements", revision]
    done = subprocess.run(
        [*command, "--output-dir", str(checks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SUITE_SECONDS,
        check=False,
    )
    return done.returncode, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


def _worse_than_passed(folder: Path, unscored: frozenset[str]) -> list[str]:
    lines: list[str] = []
    for file in sorted(folder.glob("*/checks.json")):
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT.*", "", file.parent.name).removeprefix("server-")
        for check in json.loads(file.read_text()):
            failed = check["status"] == "FAILURE" and not unscored & {
                scenario,
                f"server-{scenario}",
            }
            if failed or check["status"] == "WARNING":
                why = str(check.get("errorMessage", "")).replace("\n", " ")[:500]
                lines.append(f"{check['status'].lower()}: {scenario}: {check['id']}: {why}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
