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


def test_report_is_counted_and_closed_as_the_suite_means_it() -> None:
    outcome = Outcome.read(REPORT)
    assert (outcome.passed, outcome.failed, outcome.scored_failures) == (15, 8, 1)
    assert Outcome.read("Error: fetch failed").passed == 0
    line = outcome.closing_line("2025-11-25", "stdio")
    assert line == "conformance 2025-11-25 (stdio): 15/23"
    line = outcome.closing_line("2026-07-28", "http")
    assert line == "conformance 2026-07-28 (http): 15 passed, 8 failed, 1 scored failures"
