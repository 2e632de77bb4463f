"""Run the official conformance suite against its fixture server, through Comity or directly.

    scripts/conformance 2025-11-25|2026-07-28 [--upstream http|stdio] [--direct]

The suite decides what it scores. One thing it does not do is notice checks that vanish: a reply
it may not judge (plain JSON where it looks for a stream) is counted neither as passed nor as
failed. So fewer passes than the fixture has by itself also fail the run.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.peers import SERVERS, node, official_fixture, package
from tests.interop.processes import comity, http_server

_SUITE_SECONDS = 300

# How many checks the fixture passes. Over stdio it cannot close a stream in the middle of a call,
# which is one check of the 84 (server-sse-disconnect-resume).
_PASSES = {
    ("2025-11-25", "http"): 84,
    ("2025-11-25", "stdio"): 83,
    ("2026-07-28", "http"): 168,
    ("2026-07-28", "stdio"): 163,
}


@dataclass(frozen=True)
class Outcome:
    passed: int
    failed: int
    scored_failures: int
    unscored: frozenset[str]

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
        )

    def closing_line(self, revision: str, way: str) -> str:
        if revision == "2025-11-25":
            figures = f"{self.passed}/{self.passed + self.failed}"
        else:
            figures = f"{self.passed} passed, {self.failed} failed"
            figures += f", {self.scored_failures} scored failures"
        return f"conformance {revision} ({way}): {figures}"


def main() -> int:
    asked = _arguments()
    with tempfile.TemporaryDirectory(prefix="comity-conformance-") as folder:
        with _server_under_test(asked.upstream, asked.direct, Path(folder)) as url:
            status, report = _run_suite(url, asked.revision, Path(folder) / "checks")
        print(report.partition("=== SUMMARY ===")[2].strip() or report)
        outcome = Outcome.read(report)
        print(*_worse_than_passed(Path(folder) / "checks", outcome.unscored), sep="\n")
    least = _PASSES[asked.revision, asked.upstream]
    if outcome.passed < least:
        print(f"{outcome.passed} checks passed, and the fixture by itself passes {least}")
    print(outcome.closing_line(asked.revision, "direct" if asked.direct else asked.upstream))
    return int(bool(status or outcome.scored_failures or outcome.passed < least))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("revision", choices=["2025-11-25", "2026-07-28"])
    parser.add_argument("--upstream", choices=["http", "stdio"], default="http")
    parser.add_argument("--direct", action="store_true", help="leave Comity out, to compare")
    asked = parser.parse_args()
    if asked.direct and asked.upstream == "stdio":
        parser.error("the suite speaks HTTP only: without Comity there is no way to stdio")
    return asked


@contextmanager
def _server_under_test(upstream: str, direct: bool, folder: Path) -> Generator[str]:
    path = {"PYTHONPATH": str(official_fixture())}
    if upstream == "stdio":
        launcher = str(SERVERS / "everything_stdio.py")
        entry = {"command": sys.executable, "args": [launcher], "env": path}
        with _through_comity(entry, folder) as url:
            yield url
        return
    with http_server(_fixture_command, path) as origin:
        if direct:
            yield f"{origin}/mcp"
            return
        with _through_comity({"type": "http", "url": f"{origin}/mcp"}, folder) as url:
            yield url


@contextmanager
def _through_comity(entry: Mapping[str, object], folder: Path) -> Generator[str]:
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"everything": entry}}))
    with comity(config) as origin:
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
