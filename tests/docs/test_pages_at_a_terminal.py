"""The README and the quickstart at real terminals, with the environment that a clone makes."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.first_hour import QUICKSTART, README, read_the_quickstart, read_the_readme
from tests.docs.typist import PageReader, render
from tests.interop.processes import free_port

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("bash") is None, reason="the pages are typed into bash"),
]


def person_env(home: Path, path: str) -> dict[str, str]:
    """Return the environment of somebody who has only a home and programs."""
    home.mkdir()
    return {"HOME": str(home), "PATH": f"{path}:{os.defpath}", "COMITY_PORT": str(free_port())}


@pytest.mark.parametrize(
    ("page", "read"), [(README, read_the_readme), (QUICKSTART, read_the_quickstart)]
)
def test_a_page_works_word_by_word_in_a_clone(
    tmp_path: Path, page: Path, read: Callable[..., None]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    env = person_env(tmp_path / "home", str(Path(sys.executable).parent))
    read(PageReader(page, folder, env), installs=False)


def test_a_screen_shows_the_last_thing_that_was_drawn_at_each_place() -> None:
    assert render("one\r\ntwo\r\n") == "one\ntwo\n"
    assert render("|\r\x1b[2K/\r\x1b[2Kdone\r\n\x1b[1mbold\x1b[0m") == "done\nbold"
    assert render("first\r\nsecond\r\n\x1b[2A\x1b[2Kthird\r\n") == "third\nsecond\n"
