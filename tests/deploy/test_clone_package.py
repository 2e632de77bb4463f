"""A package that somebody builds from a clone has the web console."""

import os
import shutil
from pathlib import Path

import pytest

from tests.deploy.clone import STATIC, build_wheel, copy_clone

pytestmark = pytest.mark.timeout(1_200)


def test_a_clone_makes_a_package_with_the_console(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    place = copy_clone(tmp_path / "clone")
    told, files = build_wheel(place, tmp_path / "out", os.environ["PATH"])
    assert f"{STATIC}index.html" in files, told
    assert any(name.endswith(".js") for name in files)
