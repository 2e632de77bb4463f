"""`cli/verifying.py`: a proof through the code of the command, its progress, and its report."""

import io
import random
import sys
from pathlib import Path

import pytest

from comity.cli.exporting import read
from comity.cli.verifying import (
    Progress,
    make_proof,
    outside,
    prove,
    report_view,
    show_report,
    size_of,
)
from comity.rules.proof import Report
from comity.wire import exported
from comity.wire.errors import Misconfigured
from tests.rules.journals import DEEDS, PUBLIC, Journal, export

WHOLE = Journal.of(60)


def _proved(lines: list[bytes], *, known: bool = True) -> Report:
    file = io.BytesIO(b"\n".join(lines) + b"\n")
    checkpoints = WHOLE.checkpoints[-1:] if known else []
    return prove(read(file), make_proof([PUBLIC.upper()], checkpoints), Progress(None))


def test_a_thousand_tamperings_of_a_file_are_found_and_the_untouched_one_passes() -> None:
    assert _proved(export(WHOLE)).is_whole
    missed = [
        (seed, forged.deed)
        for seed in range(1000)
        for forged in [DEEDS[seed % 5](WHOLE, random.Random(seed + 10_000))]  # noqa: S311  # no secret is drawn
        if _proved(export(forged.journal)).is_whole
    ]
    assert missed == []


def test_a_cut_tail_is_missed_by_nothing_but_the_outside_checkpoint() -> None:
    cut = Journal(WHOLE.lines[:35], WHOLE.checkpoints[:3])
    assert _proved(export(cut), known=False).is_whole
    assert not _proved(export(cut)).is_whole


@pytest.mark.parametrize("lines", [[b"no export"], [b"{}"], []])
def test_what_is_no_export_is_said_to_be_none(lines: list[bytes]) -> None:
    with pytest.raises(Misconfigured):
        prove(iter(lines), make_proof([], []), Progress(None))


def test_checkpoints_are_read_and_what_is_none_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.jsonl"
    lines = [exported.checkpoint(each) for each in WHOLE.checkpoints]
    file.write_bytes(b"\n".join([*lines, b'{"checkpoint":', b"{}"]))
    found, strange = outside([str(file)])
    assert found == WHOLE.checkpoints
    assert strange == 2
    with pytest.raises(Misconfigured, match="No such file"):
        outside([str(tmp_path / "absent")])


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_told_now_and_then_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    progress = Progress(1000, clock)
    progress.begin()
    for second in range(12):
        clock.now = 100.0 + second
        progress.reach(second * 1000, second * 50)
    progress.end()
    assert capsys.readouterr().err.splitlines() == [
        "verified 5,000 entries, 1,000 a second, 25%, 15 s left",
        "verified 10,000 entries, 1,000 a second, 50%, 10 s left",
    ]


def test_on_a_terminal_it_is_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = _Terminal(), _Clock()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress(None, clock)
    clock.now += 2
    progress.reach(4000, 10)
    progress.end()
    said = screen.getvalue()
    assert "verified 4,000 entries, 2,000 a second" in said
    assert said.count("\r") == 3
    assert "\n" not in said


def test_the_report_names_the_time_for_each_entry(capsys: pytest.CaptureFixture[str]) -> None:
    report = _proved(export(WHOLE))
    show_report(report, 0.0006, ["a note"])
    told = capsys.readouterr().out
    for said in ("The journal is whole.", "60 entries", "10.0 µs an entry", "a note"):
        assert said in told
    assert report_view(report, 0.0006)["nodes"]
    assert report_view(report, 0.0006)["microseconds_per_entry"] == 10.0
    assert report_view(report, 0.0006)["whole"] is True


def test_the_report_names_what_is_wrong_and_where(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(WHOLE.lines)
    lines[30] = lines[30]._replace(body=b'{"a":1}')
    report = _proved(export(Journal(lines, WHOLE.checkpoints)))
    show_report(report, 1, [])
    told = capsys.readouterr().out
    assert "The journal is not what was written." in told
    assert "altered: entry 31 of node-1 does not follow" in told
    (finding,) = report_view(report, 1)["findings"]
    assert (finding["kind"], finding["node"], finding["seq"]) == ("altered", "node-1", 31)


def test_how_much_there_is_to_read_is_known_of_plain_files_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("12345")
    (tmp_path / "a.gz").write_text("12345")
    assert size_of(str(tmp_path / "a.jsonl")) == 5
    assert size_of(str(tmp_path / "a.gz")) is None
    assert size_of(str(tmp_path / "absent")) is None
