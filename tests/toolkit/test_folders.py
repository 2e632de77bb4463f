"""Folders that a hostile program filled are removed, and nothing else."""

import os
from pathlib import Path

from comity.toolkit.folders import remove_folder


def test_folders_of_any_depth_are_removed(tmp_path: Path) -> None:
    place = tmp_path / "scratch"
    place.mkdir()
    here = os.open(place, os.O_RDONLY)
    # Deeper than the recursion of Python, and a path longer than a system call takes.
    for _ in range(3000):
        os.mkdir("inner", dir_fd=here)
        inner = os.open("inner", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    remove_folder(place)
    assert not place.exists()


def test_a_folder_that_nobody_may_enter_is_removed(tmp_path: Path) -> None:
    closed = tmp_path / "scratch" / "a" / "closed"
    (closed / "inner").mkdir(parents=True)
    (closed / "file").write_text("x")
    if not os.geteuid():
        for each in (closed / "inner", closed, closed.parent, closed.parent.parent):
            os.chown(each, 65534, 65534)
    for each in (closed / "inner", closed, closed.parent, closed.parent.parent):
        each.chmod(0)
    if os.geteuid():
        remove_folder(tmp_path / "scratch")
    else:
        # Root may enter every folder, so another user has to try.
        os.chown(tmp_path, 65534, 65534)
        tmp_path.parent.chmod(0o711)
        tmp_path.parent.parent.chmod(0o711)
        pid = os.fork()
        if pid == 0:
            os.setresuid(65534, 65534, 65534)
            remove_folder(tmp_path / "scratch")
            os._exit(0)
        os.waitpid(pid, 0)
    assert not (tmp_path / "scratch").exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    place = tmp_path / "scratch"
    place.mkdir()
    (place / "link").symlink_to(kept)
    (tmp_path / "named").symlink_to(place)
    remove_folder(tmp_path / "named")
    assert place.is_dir()
    remove_folder(place)
    assert (place.exists(), (kept / "inner").is_dir()) == (False, True)
    remove_folder(tmp_path / "not there")
