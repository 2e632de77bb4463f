"""`config/secret_files.py`: secrets stand in files that no other user can read."""

from pathlib import Path

import pytest

from comity.config import secret_files
from comity.config.secret_files import (
    MAX_SECRET_BYTES,
    read_secret,
    reserve_secret,
    write_secret,
)
from comity.errors import Misconfigured


def _file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    file = folder / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    return file


def test_a_secret_is_read_without_the_space_around_it(tmp_path: Path) -> None:
    assert read_secret(_file(tmp_path, b" hush \n"), "key_file") == b"hush"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(Misconfigured, match=r"key_file: other users can read .*chmod 600"):
        read_secret(_file(tmp_path, b"hush", mode), "key_file")


def test_a_mounted_secret_has_the_mode_that_the_engine_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_files, "MOUNTED_SECRETS", (tmp_path,))
    assert read_secret(_file(tmp_path, b"hush", 0o644), "key_file") == b"hush"


def test_a_file_that_is_missing_or_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"key_file: .*cannot be read: No such file"):
        read_secret(tmp_path / "absent", "key_file")
    with pytest.raises(Misconfigured, match="too long"):
        read_secret(_file(tmp_path, b"x" * (MAX_SECRET_BYTES + 1)), "key_file")


def test_a_written_secret_is_for_this_user_alone_and_leaves_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    write_secret(file, b"first")
    write_secret(file, b"second")
    assert read_secret(file, "key_file") == b"second"
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_secret_that_another_process_wrote_first_stays(tmp_path: Path) -> None:
    file = _file(tmp_path, b"first")
    write_secret(file, b"second", keep_existing=True)
    assert file.read_bytes() == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_secret_that_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.mkdir()
    with pytest.raises(OSError, match="secret"):
        write_secret(file, b"hush")
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_file_that_may_be_shared_is_read(tmp_path: Path) -> None:
    file = _file(tmp_path, b"hush", 0o644)
    assert read_secret(file, "key_file", may_be_shared=True) == b"hush"


def test_a_file_of_our_own_is_no_link(tmp_path: Path) -> None:
    file = _file(tmp_path, b"hush")
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_secret(file, "record", must_be_own=True) == b"hush"
    with pytest.raises(Misconfigured, match="cannot be read"):
        read_secret(link, "record", must_be_own=True)


def test_a_reserved_file_is_private_and_takes_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with reserve_secret(file):
        assert file.stat().st_mode & 0o777 == 0o600
        write_secret(file, b"hush")
    assert read_secret(file, "key_file") == b"hush"
    with pytest.raises(FileExistsError), reserve_secret(file):
        pass
    assert read_secret(file, "key_file") == b"hush"


def test_a_reserved_file_goes_when_no_secret_comes(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(Misconfigured), reserve_secret(file):
        raise Misconfigured("no key was made")
    assert not file.exists()
