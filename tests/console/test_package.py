"""The console inside the wheel: present, small, and without a reference to another host."""

import gzip
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.console.world import NEEDS_CONSOLE
from tests.interop.peers import ROOT

STATIC = ROOT / "src/comity/console/static"
MAX_FIRST_LOAD = 300 * 1024
NEVER_LOADED = ("http://www.w3.org/", "https://react.dev/errors/", "http://localhost")
"""XML namespaces, the address in React's messages, and the base of the router's own paths."""

pytestmark = [
    pytest.mark.integration,
    NEEDS_CONSOLE,
]


def test_the_wheel_holds_the_console(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,) = tmp_path.glob("comity-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "comity/console/static/index.html" in names
    assert not [name for name in names if name.endswith((".map", ".ts", ".tsx"))]
    record_property("wheel bytes", wheel.stat().st_size)
    print(f"the wheel has {wheel.stat().st_size:,} bytes")


def test_all_scripts_and_styles_together_are_below_the_limit_of_the_first_load() -> None:
    """The first view loads a part of them, so it is below the limit too."""
    files = [*STATIC.glob("assets/*.js"), *STATIC.glob("assets/*.css"), STATIC / "index.html"]
    whole = sum(len(gzip.compress(each.read_bytes())) for each in files)
    print(f"all files have {whole:,} bytes, compressed one by one")
    assert whole < MAX_FIRST_LOAD


def test_the_page_has_no_inline_script_or_style_and_names_no_other_host() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", page)
    assert "<style" not in page
    assert " on" not in re.sub(r"<[^>]*>", lambda tag: tag[0].lower(), page).split("<body>")[0]
    for file in (*STATIC.glob("assets/*.js"), *STATIC.glob("assets/*.css"), STATIC / "index.html"):
        found = re.findall(r"https?://[\w.-]+[^\s\"'`)]*", file.read_text())
        strange = [url for url in found if not url.startswith(NEVER_LOADED)]
        assert strange == [], file.name
