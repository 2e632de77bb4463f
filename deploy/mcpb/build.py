"""Builds the bundle for Claude Desktop: scripts/mcpb [FOLDER] writes comity-VERSION.mcpb there.

The bundle is the same for the same sources, byte by byte.
"""

import json
import sys
import tomllib
import zipfile
from pathlib import Path

PARTS = Path(__file__).resolve().parent
ROOT = PARTS.parents[1]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    manifest = json.loads((PARTS / "manifest.json").read_text("utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / f"comity-{version}.mcpb"
    contents = {
        "manifest.json": json.dumps({**manifest, "version": version}, indent=2) + "\n",
        "launcher.py": (PARTS / "launcher.py").read_text("utf-8"),
        "LICENSE": (ROOT / "LICENSE").read_text("utf-8"),
    }
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in contents.items():
            about = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = 0o644 << 16
            packed.writestr(about, text)
    sys.stdout.write(f"{bundle}\n")


main()
