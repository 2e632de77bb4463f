"""`adapters/signing.py`: a key that is made once, read by nobody else, and signs."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from comity.adapters.signing import Signer, load_or_make, verify
from comity.rules.proof import name_of
from comity.wire.errors import Misconfigured


def test_a_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "below" / "journal.key"
    made = load_or_make(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_or_make(file).key == made.key
    assert [each.name for each in file.parent.iterdir()] == ["journal.key"], "and nothing is left"
    assert made.key not in file.read_text()


def test_what_is_signed_is_verified_and_nothing_else(tmp_path: Path) -> None:
    signer = load_or_make(tmp_path / "journal.key")
    signature = signer.sign(b"data")
    assert verify(signer.key, b"data", signature)
    assert not verify(signer.key, b"date", signature)
    assert not verify(signer.key, b"data", bytes(64))
    assert not verify(load_or_make(tmp_path / "other.key").key, b"data", signature)
    for key in ("", "zz", "ab" * 31, "ff" * 32, "é"):
        assert not verify(key, b"data", signature)
    assert not verify(signer.key, b"data", signature[:-1])


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "journal.key"
    load_or_make(file)
    file.chmod(mode)
    with pytest.raises(Misconfigured, match="chmod 600"):
        load_or_make(file)


@pytest.mark.parametrize("said", ["", "no key", "comity-journal-key-1:", "ab" * 32, "\xff"])
def test_a_file_that_holds_something_else_is_refused_and_kept(tmp_path: Path, said: str) -> None:
    file = tmp_path / "journal.key"
    file.write_text(said, encoding="latin-1")
    file.chmod(0o600)
    with pytest.raises(Misconfigured, match="holds no key"):
        load_or_make(file)
    assert file.read_text(encoding="latin-1") == said


def test_a_folder_that_cannot_be_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="the key of the journal"):
        load_or_make(tmp_path / "file" / "journal.key")


def test_of_many_processes_that_make_it_at_once_all_have_the_same(tmp_path: Path) -> None:
    file = tmp_path / "journal.key"
    program = (
        "import sys; from pathlib import Path; from comity.adapters.signing import load_or_make;"
        "sys.stdin.read(1); print(load_or_make(Path(sys.argv[1])).key)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    told = {process.communicate("x", timeout=50)[0].strip() for process in started}
    assert told == {load_or_make(file).key}
    assert os.listdir(tmp_path) == ["journal.key"]  # noqa: PTH208  # names alone


def test_a_node_is_named_after_its_key_and_the_secret_is_told_by_nothing(tmp_path: Path) -> None:
    signer = load_or_make(tmp_path / "journal.key")
    assert name_of(signer.key).startswith("n-")
    assert len(name_of(signer.key)) == 14
    assert repr(signer) == f"Signer({signer.key!r})"
    assert isinstance(signer, Signer)
