"""What the official suite prints is counted as it means it."""

from tests.interop.conformance import Outcome

REPORT = """
Running 4 scenarios

=== SUMMARY ===
✓ ping: 2 passed, 0 failed
✗ tools-list: 3 passed, 1 failed
✗ tasks-lifecycle: 2 passed, 7 failed
✓ json-schema-2020-12: 8 passed, 0 failed

Total: 15 passed, 8 failed

Not scored for 2026-07-28: 2 scenario(s) run, 1 failing. These do not affect conformance.
  ✗ tasks-lifecycle (extension)
  ✓ json-schema-2020-12 (pending)
"""


def test_every_check_of_every_scenario_is_counted() -> None:
    outcome = Outcome.read(REPORT)
    assert (outcome.passed, outcome.failed) == (15, 8)


def test_only_failures_of_scored_scenarios_are_scored() -> None:
    assert Outcome.read(REPORT).scored_failures == 1


def test_a_report_without_a_summary_has_no_passes() -> None:
    assert Outcome.read("Error: fetch failed").passed == 0


def test_the_closing_line_of_the_handshake_revision_is_a_fraction() -> None:
    line = Outcome.read(REPORT).closing_line("2025-11-25", "stdio")
    assert line == "conformance 2025-11-25 (stdio): 15/23"


def test_the_closing_line_of_the_new_revision_tells_what_is_scored() -> None:
    line = Outcome.read(REPORT).closing_line("2026-07-28", "http")
    assert line == "conformance 2026-07-28 (http): 15 passed, 8 failed, 1 scored failures"
