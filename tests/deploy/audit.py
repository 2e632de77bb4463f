"""Known vulnerabilities of the packages in the image: `python -m tests.deploy.audit`.

It ends with status 1 if a package has one. Where the advisories cannot be reached within 30
seconds, it warns and ends with status 0, so that a machine without a network can run the rest.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.deploy.files import DEPLOY

SECONDS = 30


def fetch_report(seconds: float = SECONDS) -> list[dict[str, Any]]:
    """Return the packages as pip-audit reports them, or nothing if it could not ask."""
    program = str(Path(sys.executable).with_name("pip-audit"))
    options = ["--disable-pip", "--progress-spinner", "off", "--format", "json"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        files = ["--requirement", str(DEPLOY / "requirements.lock"), "--output", str(report)]
        try:
            subprocess.run(
                [program, *options, *files], capture_output=True, timeout=seconds, check=False
            )
            return json.loads(report.read_text(encoding="utf-8"))["dependencies"]
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
            return []


def summarise(packages: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """Return the exit status and the lines to print."""
    known = [each for each in packages if "skip_reason" not in each]
    bad = [
        f"audit: {each['name']} {each['version']} has {found['id']}; "
        f"fixed in {', '.join(found['fix_versions']) or 'no version yet'}"
        for each in known
        for found in each["vulns"]
    ]
    if bad:
        return 1, bad
    if not known:
        return 0, ["audit: WARNING: the advisories cannot be reached, so no package was audited"]
    skipped = len(packages) - len(known)
    lines = [f"audit: {len(known)} packages have no known vulnerability"]
    if skipped:
        lines.append(f"audit: WARNING: {skipped} packages were not audited")
    return 0, lines


if __name__ == "__main__":
    status, lines = summarise(fetch_report())
    print("\n".join(lines))
    sys.exit(status)
