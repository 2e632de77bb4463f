"""Folders that a hostile program filled are measured and removed, and nothing else."""

import os
from pathlib import Path

from comity.toolkit.folders import holds_more, remove_folder


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


def test_a_folder_is_measured_with_its_folders_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for number in range(8):
        (tmp_path / "inner" / str(number)).touch()
    (tmp_path / "inner" / "large").write_bytes(bytes(1024 * 1024))
    # Nothing behind a link counts, and no more than the disk holds.
    (tmp_path / "link").symlink_to("/usr")
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1024**3)
    small = 11 * 16 * 1024
    assert holds_more(tmp_path, 1024 * 1024 + small - 4096)
    assert not holds_more(tmp_path, 1024 * 1024 + small + 64 * 1024)
    assert holds_more(tmp_path / "inner", 8 * 16 * 1024)
    assert not holds_more(tmp_path / "absent", 0)
    assert not holds_more(tmp_path / "link", 0)


def test_a_folder_with_a_path_too_long_to_open_counts_as_full(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("x" * 50, dir_fd=here)
        inner = os.open("x" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    assert holds_more(tmp_path, 1024**3)
    remove_folder(tmp_path / ("x" * 50))


def test_a_folder_that_nobody_may_enter_counts_as_full(tmp_path: Path) -> None:
    closed = tmp_path / "scratch" / "closed"
    closed.mkdir(parents=True)
    assert not holds_more(closed.parent, 1024**3)
    closed.chmod(0)
    if os.geteuid():
        assert holds_more(closed.parent, 1024**3)
    else:
        # Root may enter every folder, so another user has to try.
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o711)
        pid = os.fork()
        if pid == 0:
            os.setresuid(65534, 65534, 65534)
            os._exit(int(holds_more(closed.parent, 1024**3)))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    closed.chmod(0o700)
