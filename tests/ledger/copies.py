"""A copy of this project whose product can be broken, with an environment that imports it.

The environment is a new one that finds the copy's product first and then all packages of the
environment that makes it. Programs that tests start find the copy's product too, because they are
started with the copy's Python.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

_LINKED = (".tools", "node_modules")


def make_copy(root: Path, folder: Path) -> Path:
    """Copy what Git tracks or would track; returns the Python of the copy."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    named = subprocess.run(listed, cwd=root, capture_output=True, check=True).stdout.decode()
    for name in filter(None, named.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name, follow_symlinks=False)
    for name in _LINKED:
        if (root / name).exists():
            (folder / name).symlink_to(root / name)
    return _make_environment(Path(sys.prefix), folder)


def _make_environment(given: Path, folder: Path) -> Path:
    made = folder / ".venv"
    venv.create(made, symlinks=True, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = Path("lib") / version / "site-packages"
    # A folder that is named in such a file has none of its own such files read, so that the
    # product of this project stays out.
    paths = f"{folder / 'src'}\n{given / packages}\n"
    (made / packages / "copy.pth").write_text(paths, encoding="utf-8")
    python = made / "bin" / "python"
    for script in (given / "bin").iterdir():
        if not (made / "bin" / script.name).exists():
            _give(script, made / "bin" / script.name, python)
    return python


def _give(script: Path, to: Path, python: Path) -> None:
    """The same command for the copy: with its own Python where it is a script of Python."""
    start, _, rest = script.read_bytes().partition(b"\n")
    if start.startswith(b"#!") and b"python" in start:
        to.write_bytes(b"#!" + os.fsencode(python) + b"\n" + rest)
        to.chmod(0o755)
    else:
        to.symlink_to(script)
