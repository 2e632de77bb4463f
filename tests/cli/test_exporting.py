"""`cli/exporting.py`: the lines of a journal from a gateway, a store or a file."""

import io
import json
from pathlib import Path

import pytest

from comity.cli.exporting import lines, read, reading, writing
from comity.wire.errors import Misconfigured
from comity.wire.exported import LINE_BYTES
from tests.cli.scripted_gateway import JSON, Heard, Said, scripted_gateway


def test_a_gateway_is_asked_page_after_page() -> None:
    def answer(heard: Heard) -> Said:
        if "cursor=7+n" in heard.path:
            page: dict[str, object] = {"lines": ["three"]}
        else:
            page = {"lines": ["one", "two"], "next": "7 n"}
        return 200, JSON, json.dumps(page).encode()

    with scripted_gateway(answer) as gateway:
        assert list(lines(gateway.url, None)) == [b"one", b"two", b"three"]
    assert [heard.path for heard in gateway.heard] == [
        "/api/journal/export",
        "/api/journal/export?cursor=7+n",
    ]


@pytest.mark.parametrize("name", ["journal.jsonl", "journal.jsonl.gz"])
def test_a_file_is_written_and_read_and_never_overwritten(tmp_path: Path, name: str) -> None:
    file = str(tmp_path / name)
    with writing(file) as opened:
        opened.write(b"one\ntwo\n")
    with reading(file) as opened:
        assert list(read(opened)) == [b"one\n", b"two\n"]
    with pytest.raises(Misconfigured, match="File exists"), writing(file):
        pass


def test_a_file_that_is_cut_in_the_middle_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl.gz"
    with writing(str(file)) as opened:
        opened.write(b"one\n" * 10_000)
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(Misconfigured, match="cannot be read to its end"), reading(str(file)) as cut:
        list(read(cut))


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    endless = io.BytesIO(b"x" * (LINE_BYTES + 10))
    assert [len(line) for line in read(endless)] == [LINE_BYTES, 10]
