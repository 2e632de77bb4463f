"""Builds the web console into the package, so that every wheel has it.

`scripts/console` needs npm. Where npm is missing or fails, the package has no console, and Comity
says so where people look for it.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any, override

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STATIC = Path("src/comity/console/static/index.html")
SCRIPT = Path("scripts/console")
MAX_SECONDS = 900


class ConsoleBuildHook(BuildHookInterface[Any]):
    """Runs before a wheel or a source distribution is put together."""

    @override
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        # An editable installation reads the folder itself, whenever scripts/console has filled it.
        if version == "editable" or (root / STATIC).is_file():
            return
        problem = _build_console(root)
        if problem:
            self.app.display_warning(
                f"The package gets no web console, because {problem}. Everything else is in it."
            )


def _build_console(root: Path) -> str:
    """Build the console; returns why that was impossible."""
    if not (root / SCRIPT).is_file():
        return "its sources are not here"
    bash = shutil.which("bash")
    if bash is None or shutil.which("npm") is None:
        return "npm and bash are needed to build it"
    try:
        done = subprocess.run(
            [bash, str(root / SCRIPT)],
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"scripts/console did not end well ({type(error).__name__})"
    if done.returncode or not (root / STATIC).is_file():
        last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        return f"scripts/console failed: {last[:300]}"
    return ""
