"""`comity audit`: at a gateway that runs, in the store where none does, and on files."""

import io
import json
import random
import re
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from comity.audit import export as exported
from comity.audit.commands import (
    VerificationProgress,
    audit_command,
    fetch_export_lines,
    make_proof,
    open_input,
    open_output,
    read_checkpoints,
    read_export_lines,
    report_view,
    show_report,
    size_of,
    verify_lines,
)
from comity.audit.export import LINE_BYTES
from comity.audit.verify import VerificationReport
from comity.errors import Misconfigured
from tests.cli.program import EXAMPLE, Desk, Ran, Terminal
from tests.cli.scripted_gateway import JSON, Heard, Said, scripted_gateway
from tests.interop.processes import comity
from tests.support.cases import loop_over
from tests.support.journals_rules import DEEDS, PUBLIC, Journal, export

pytestmark = pytest.mark.timeout(300)

NOBODY_THERE = {"COMITY_URL": "http://127.0.0.1:9"}
SERVER = "\n".join(
    (
        "[[servers]]",
        'id = "example"',
        f"command = {json.dumps(EXAMPLE['command'])}",
        f"args = {json.dumps(EXAMPLE['args'])}",
    )
)


class Kept:
    """A gateway that has been called twice, and what it left."""

    def __init__(self, desk: Desk, config: Path) -> None:
        self.desk = desk
        self.config = config
        self.checkpoints = config.with_name("checkpoints.jsonl")

    def journal(self, *words: str) -> Ran:
        return self.desk.run("audit", *words, "--offline", "-c", str(self.config))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    root = tmp_path_factory.mktemp("journal")
    desk = Desk(root)
    checkpoints = root / "folder" / "checkpoints.jsonl"
    config = desk.write(
        "comity.toml",
        f'[store]\nurl = "sqlite:///{root}/folder/comity.db"\n[audit]\narguments = "all"\n'
        f'checkpoint_mirror = "{checkpoints}"\n{SERVER}\n',
    )
    with comity(config) as origin:
        calls = (("message=password=hush-hush",), ("mesage=wrong",))
        statuses = [
            desk.run("call", "example__echo", *words, "--url", origin).status for words in calls
        ]
        assert statuses == [0, 1]
        _at_a_gateway(desk, origin)
    return Kept(desk, config)


def _at_a_gateway(desk: Desk, origin: str) -> None:
    """The same commands, asked of the gateway while it runs."""
    told = _until(desk, origin, 3)
    trace = told[-1]["trace"]
    assert "agent" not in trace
    assert desk.run("audit", "show", trace, "--url", origin).status == 0
    proved = desk.run("audit", "verify", "--url", origin, "-o", "json")
    assert (proved.status, proved.json["findings"]) == (0, []), proved.out
    key = desk.run("audit", "key", "--url", origin, "-o", "json").json
    assert key["node"].startswith("n-")


def _until(desk: Desk, origin: str, count: int) -> list[Any]:
    """What is told last, once there is enough of it: it is kept within a moment."""
    told: list[Any] = []
    for _ in range(20):
        ran = desk.run("audit", "tail", "--url", origin, "--server", "example", "-o", "json")
        told = [json.loads(line) for line in ran.lines]
        if len(told) >= count:
            return told
    raise AssertionError(told)


def test_what_happened_is_shown_and_no_secret(kept: Kept) -> None:
    shown = kept.journal("tail")
    assert shown.status == 0, shown.err
    for said in ("TIME", "person:local", "audit log opened", "validation failed", "example/echo"):
        assert said in shown.out
    assert "hush" not in shown.out + kept.journal("list", "-o", "json").out


def test_it_is_searched_by_what_happened_to_whom(kept: Kept) -> None:
    found = kept.journal("list", "--type", "tool_executed", "-o", "json").json["entries"]
    assert [entry["tool"] for entry in found] == ["echo"]
    assert found[0]["details"]["arguments"]["message"].startswith("password=[secret:")
    blocked = kept.journal(
        "list", "--principal", "person:local", "--result", "blocked", "--since", "1h"
    )
    assert "validation failed" in blocked.out
    nothing = kept.journal("list", "--principal", "agent:nobody")
    assert (nothing.status, nothing.out) == (0, "No entry matches.\n")
    assert "No entry matches" in kept.journal("list", "--until", "2000-01-01").out
    first = kept.journal("list", "--limit", "1", "--oldest")
    assert "audit log opened" in first.out
    assert "--limit shows more" in first.out
    assert kept.journal("list", "--since", "soon").status == 2


def test_a_call_is_told_as_a_story(kept: Kept) -> None:
    (entry,) = kept.journal("list", "--type", "tool_executed", "-o", "json").json["entries"]
    for name in (entry["trace"], entry["call"]):
        told = kept.journal("show", name)
        assert told.lines[0].startswith("person:local called example/echo: it succeeded after ")
        assert "[secret:" in told.out
        assert f"trace {entry['trace']}" in told.out
    story = kept.journal("show", entry["trace"], "-o", "json").json
    assert {"headline", "events", "unknown", "entries"} == set(story)
    strange = kept.journal("show", "nothing-like-that")
    assert strange.status == 5
    assert "the audit log has no entry for" in strange.err


def test_it_is_proved_in_the_store_and_as_a_file(kept: Kept, tmp_path: Path) -> None:
    key = kept.journal("key", "-o", "json").json["key"]
    known = ("--key", key, "--checkpoints", str(kept.checkpoints))
    proved = kept.journal("verify", *known)
    assert proved.status == 0, proved.out
    assert "The audit log is intact." in proved.out
    assert "µs" not in proved.out
    file = tmp_path / "journal.jsonl.gz"
    assert kept.journal("export", "--file", str(file)).status == 0
    assert kept.desk.run("audit", "verify", str(file), *known).status == 0
    assert kept.journal("export", "--file", str(file)).status == 2, "nothing is overwritten"
    piped = kept.journal("export").out
    assert kept.desk.run("audit", "verify", "-", *known, said=piped).status == 0
    altered = piped.replace("validation", "Validation").replace("example", "exemple", 1)
    found = kept.desk.run("audit", "verify", "-", *known, "-o", "json", said=altered)
    assert found.status == 1
    assert found.json["findings"][0]["kind"] in ("altered", "columns")
    lines = piped.splitlines()
    short = "\n".join((lines[0], lines[1], '{"end":1}'))
    cut = kept.desk.run("audit", "verify", "-", *known, said=short)
    assert cut.status == 1
    assert "cut: entry 2 of" in cut.out


@pytest.mark.parametrize("deed", range(len(DEEDS)))
def test_tamperings_are_found_by_the_program_itself(desk: Desk, deed: int) -> None:
    whole = Journal.of(40)
    checkpoint = desk.write(
        "outside.jsonl", export(Journal([], whole.checkpoints[-1:]))[1].decode()
    )
    forged = DEEDS[deed](whole, random.Random(deed))  # noqa: S311  # no secret is drawn
    for journal, status in ((whole, 0), (forged.journal, 1)):
        said = b"\n".join(export(journal)).decode()
        options = ("--checkpoints", str(checkpoint), "--key", PUBLIC)
        ran = desk.run("audit", "verify", "-", *options, said=said)
        assert ran.status == status, ran.out


@pytest.mark.parametrize("words", [("absent.jsonl",), ("-",), ("comity.toml",), ()])
def test_what_cannot_be_proved_is_neither_whole_nor_not(desk: Desk, words: tuple[str, ...]) -> None:
    desk.write("comity.toml", "[limits]\n")
    ran = desk.run("audit", "verify", *words, **NOBODY_THERE)
    assert ran.status == (2 if words else 3)
    assert ran.err.startswith("comity: ")


def test_without_a_store_there_is_nothing_to_show(desk: Desk) -> None:
    desk.write("comity.toml", "[limits]\n")
    assert desk.run("audit", "tail", **NOBODY_THERE).status == 3
    assert desk.run("audit", "key", "--offline", "-c", "comity.toml").status == 2


def _entry(actor: str, type: str, result: str, at: str, **details: object) -> dict[str, Any]:
    named = {"actor": actor, "type": type, "result": result, "at": at, "details": details}
    return {**named, "node": "n-1", "seq": len(actor), "server": "files", "tool": "write"} | {
        "trace": "0d418b1001d432be5d1dde7852d06dbe",
        "call": "",
    }


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The entries that `comity audit tail` gets, the newest first."""
    now = datetime.now(UTC).isoformat()
    entries = [
        _entry("person:ana@example.org", "TOOL_EXECUTED", "SUCCESS", now),
        _entry("agent:ci", "TOOL_BLOCKED", "BLOCKED", now, outcome="pending_approval"),
        _entry("agent:c", "TOOL_BLOCKED", "BLOCKED", "2025-03-01T12:00:00+00:00"),
    ]

    def get(*_: object, **__: object) -> dict[str, Any]:
        return {"entries": entries}

    monkeypatch.setattr("comity.app.administration.AdminClient.get", get)
    return entries


def _tail(columns: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", columns)
    ran = CliRunner().invoke(audit_command, ["tail"], standalone_mode=False, catch_exceptions=False)
    return ran.output.splitlines()


@pytest.mark.usefixtures("listed")
def test_on_a_narrow_terminal_the_entries_keep_their_header_and_their_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = _tail("80", monkeypatch)
    assert lines[0].split() == ["TIME", "PRINCIPAL", "TYPE", "RESULT"]
    assert len(lines) == 7
    assert max(map(len, lines)) <= 80
    starts = [lines[0].index(name) for name in ("PRINCIPAL", "TYPE", "RESULT")]
    for line in lines[1::2]:
        assert [line[start - 2 : start] for start in starts] == ["  "] * 3
        assert " " not in [line[start] for start in starts]


@pytest.mark.usefixtures("listed")
def test_a_call_that_waits_for_approval_is_told_apart_from_one_that_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    header, refused, waits, _ = _tail("160", monkeypatch)
    assert header.split() == ["TIME", "PRINCIPAL", "TYPE", "RESULT", "SERVER/TOOL", "TRACE"]
    assert "  tool blocked          BLOCKED  files/write" in refused
    assert "  waiting for approval  PENDING  files/write" in waits


@pytest.mark.usefixtures("listed")
def test_each_entry_is_shown_with_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    _, old, today, _ = _tail("160", monkeypatch)
    assert old.startswith("2025-03-01 ")
    assert re.match(r"(\d\d-\d\d )?\d\d:\d\d:\d\d  ", today.lstrip())


@pytest.fixture
def running(desk: Desk) -> Generator[str]:
    config = desk.write("served/comity.toml", SERVER)
    with comity(config) as origin:
        yield origin


def test_it_is_followed_until_interrupted(desk: Desk, running: str) -> None:
    with Terminal(desk, "audit", "tail", "--follow", "--url", running) as terminal:
        terminal.until("audit log opened")
        desk.run("call", "example__now", "--url", running)
        terminal.until("example/now")
        terminal.process.send_signal(2)
        assert terminal.end() == 130
    unsigned = desk.run("audit", "key", "--url", running)
    assert unsigned.status == 5
    assert "The audit log is not signed" in unsigned.out


def test_a_gateway_is_asked_page_after_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(heard: Heard) -> Said:
        if "cursor=7+n" in heard.path:
            page: dict[str, object] = {"lines": ["three"]}
        else:
            page = {"lines": ["one", "two"], "next": "7 n"}
        return 200, JSON, json.dumps(page).encode()

    with scripted_gateway(answer) as gateway:
        monkeypatch.setenv("COMITY_URL", gateway.url)
        assert list(fetch_export_lines()) == [b"one", b"two", b"three"]
    assert [heard.path for heard in gateway.heard] == [
        "/api/audit/export",
        "/api/audit/export?cursor=7+n",
    ]


@loop_over("name", ["journal.jsonl", "journal.jsonl.gz"])
def test_a_file_is_written_and_read_and_never_overwritten(tmp_path: Path, name: str) -> None:
    file = str(tmp_path / name)
    with open_output(file) as opened:
        opened.write(b"one\ntwo\n")
    with open_input(file) as opened:
        assert list(read_export_lines(opened)) == [b"one\n", b"two\n"]
    with pytest.raises(Misconfigured, match="File exists"), open_output(file):
        pass


def test_a_file_that_is_cut_in_the_middle_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl.gz"
    with open_output(str(file)) as opened:
        opened.write(b"one\n" * 10_000)
    file.write_bytes(file.read_bytes()[:40])
    with (
        pytest.raises(Misconfigured, match="cannot be read to its end"),
        open_input(str(file)) as cut,
    ):
        list(read_export_lines(cut))


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    endless = io.BytesIO(b"x" * (LINE_BYTES + 10))
    assert [len(line) for line in read_export_lines(endless)] == [LINE_BYTES, 10]


WHOLE = Journal.of(60)


def _proved(lines: list[bytes], *, known: bool = True) -> VerificationReport:
    file = io.BytesIO(b"\n".join(lines) + b"\n")
    checkpoints = WHOLE.checkpoints[-1:] if known else []
    return verify_lines(
        read_export_lines(file),
        make_proof([PUBLIC.upper()], checkpoints),
        VerificationProgress(None),
    )


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


@loop_over("lines", [[b"no export"], [b"{}"], []])
def test_what_is_no_export_is_said_to_be_none(lines: list[bytes]) -> None:
    with pytest.raises(Misconfigured):
        verify_lines(iter(lines), make_proof([], []), VerificationProgress(None))


def test_checkpoints_are_read_and_what_is_none_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.jsonl"
    lines = [exported.checkpoint_line(each) for each in WHOLE.checkpoints]
    file.write_bytes(b"\n".join([*lines, b'{"checkpoint":', b"{}"]))
    found, strange = read_checkpoints([str(file)])
    assert found == WHOLE.checkpoints
    assert strange == 2
    with pytest.raises(Misconfigured, match="No such file"):
        read_checkpoints([str(tmp_path / "absent")])


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_told_now_and_then_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    progress = VerificationProgress(1000, clock)
    progress.start()
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
    progress = VerificationProgress(None, clock)
    clock.now += 2
    progress.reach(4000, 10)
    progress.end()
    said = screen.getvalue()
    assert "verified 4,000 entries, 2,000 a second" in said
    assert said.count("\r") == 3
    assert "\n" not in said


def test_the_report_of_80_columns_breaks_no_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = _proved(export(WHOLE))
    show_report(report, 0.0006, ["a note"])
    told = capsys.readouterr().out
    for said in ("The audit log is intact.", "60 entries", "a note", PUBLIC):
        assert said in told
    assert "µs" not in told
    assert report_view(report, 0.0006)["nodes"]
    assert report_view(report, 0.0006)["microseconds_per_entry"] == 10.0
    assert report_view(report, 0.0006)["whole"] is True


def test_the_report_names_what_is_wrong_and_where(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(WHOLE.lines)
    lines[30] = lines[30]._replace(body=b'{"a":1}')
    report = _proved(export(Journal(lines, WHOLE.checkpoints)))
    show_report(report, 1, [])
    told = capsys.readouterr().out
    assert "The audit log was changed." in told
    assert "altered: entry 31 of node-1 does not follow" in told
    (finding,) = report_view(report, 1)["findings"]
    assert (finding["kind"], finding["node"], finding["seq"]) == ("altered", "node-1", 31)


def test_how_much_there_is_to_read_is_known_of_plain_files_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("12345")
    (tmp_path / "a.gz").write_text("12345")
    assert size_of(str(tmp_path / "a.jsonl")) == 5
    assert size_of(str(tmp_path / "a.gz")) is None
    assert size_of(str(tmp_path / "absent")) is None
