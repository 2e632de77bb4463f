"""The approval of the files in a folder, as a person gives it at a terminal."""

import os
from collections.abc import Mapping
from pathlib import Path

from comity.config.trust import content_digest, trust_file

PROJECT_FILES = ("comity.toml", "mcp.json", ".mcp.json", "mgp.toml", "comity.lock")


def approve_files(folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Approve the present content of every configuration file in a folder."""
    for path in (folder / name for name in PROJECT_FILES):
        if path.is_file():
            trust_file(path, content_digest(path.read_bytes()), environ)
