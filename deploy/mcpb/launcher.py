"""Starts `comity serve --stdio` for a desktop client that installed the bundle.

It uses only the standard library and runs on the Python of the machine. A desktop client gives its
servers a short PATH, so the launcher also looks where installers put programs.
"""

import json
import os
import shutil
import sys
from pathlib import Path

PLACES = ("~/.local/bin", "~/.cargo/bin", "/opt/homebrew/bin", "/usr/local/bin")
NOT_FOUND = (
    "comity: neither `comity` nor `uvx` was found. Install Comity with `pipx install comity` or "
    "`uv tool install comity`, then start this client again.\n"
)


def search_path() -> str:
    """Return the PATH with the folders in which installers put programs."""
    extra = [str(Path(place).expanduser()) for place in PLACES]
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *extra])


def command() -> "list[str]":
    """Return the command that serves this client. It is empty if nothing can run it."""
    path = search_path()
    if found := shutil.which("comity", path=path):
        program = [found]
    elif found := shutil.which("uvx", path=path):
        manifest = json.loads(Path(__file__).with_name("manifest.json").read_text("utf-8"))
        program = [found, f"comity=={manifest['version']}"]
    else:
        return []
    config = os.environ.pop("COMITY_BUNDLE_CONFIG", "")
    # A client that has no value may leave the placeholder as it is.
    chosen = [] if not config or config.startswith("${") else ["-c", config]
    return [*program, "serve", *chosen, "--stdio"]


def main() -> int:
    words = command()
    if not words:
        sys.stderr.write(NOT_FOUND)
        return 1
    os.environ["PATH"] = search_path()
    os.execv(words[0], words)  # noqa: S606  # the client talks to it over our own pipes
    return 0


if __name__ == "__main__":
    sys.exit(main())
