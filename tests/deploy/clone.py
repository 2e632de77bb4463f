"""The files of a clone, without anything that was built, and a wheel that is built from them."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.deploy.files import ROOT

STATIC = "comity/console/static/"
SECONDS = 900


def copy_clone(place: Path) -> Path:
    """Copy what git knows or would add, except the tests and what only the docs need."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/", "bench/")):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


def build_wheel(clone: Path, out: Path, path: str) -> tuple[str, list[str]]:
    """Return what the build of a wheel says, and the files of the console in it."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(
        build,
        cwd=clone,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("comity-*.whl")
    with zipfile.ZipFile(wheel) as package:
        return done.stdout + done.stderr, [n for n in package.namelist() if n.startswith(STATIC)]
