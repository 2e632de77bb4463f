"""`comity audit`: search, show, verify and export the audit log."""

import gzip
import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final, cast

import click
from rich.console import RenderableType
from rich.text import Text

from comity.app.administration import AdminClient
from comity.audit import export
from comity.audit.chain import ChainCheckpoint
from comity.audit.events import OURS
from comity.audit.export import LINE_BYTES
from comity.audit.signing import is_valid_signature
from comity.audit.timeline import format_span, is_waiting
from comity.audit.verify import (
    USUAL_INTERVAL,
    ChainDefect,
    CheckpointInterval,
    ExportVerifier,
    VerificationReport,
)
from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_servers
from comity.cli.exit_status import DONE, FAILED, NOT_FOUND
from comity.cli.options import (
    Decorator,
    DefaultListGroup,
    current_options,
    limit_option,
    store_options,
)
from comity.cli.output import (
    build_table,
    fits_output,
    line_text,
    paragraph_text,
    show_document,
    show_hint,
    show_output,
)
from comity.cli.target import connect_gateway
from comity.config.document import ConfigValue
from comity.errors import MalformedMessage, Misconfigured
from comity.toolkit.text import count_noun

STDIO: Final = "-"


def fetch_export_lines() -> Iterator[bytes]:
    """Yield each line, without its end. Raises Misconfigured, Unavailable."""
    if not current_options().offline:
        gateway = connect_gateway()
        yield from _pages(gateway, gateway.get("audit", "export"))
        return
    # Imported here because it loads slowly, and a running gateway needs none of it here.
    from comity.app import offline

    yield from offline.export_audit_lines(current_options().config)


def _pages(gateway: ApiClient, page: Answer) -> Iterator[bytes]:
    while True:
        for line in page["lines"]:
            yield str(line).encode()
        if "next" not in page:
            return
        page = gateway.get("audit", "export", cursor=page["next"])


def read_export_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, each within bounds; an empty one at its end is none."""
    try:
        while line := file.readline(LINE_BYTES):
            yield line
    except (OSError, EOFError) as problem:
        raise Misconfigured(f"the export cannot be read to its end: {problem}") from None


@contextmanager
def open_input(name: str) -> Generator[IO[bytes]]:
    """A file by its name, compressed if that ends in .gz; `-` is standard input."""
    if name == STDIO:
        yield sys.stdin.buffer
        return
    with _opened(name, "rb") as file:
        yield file


@contextmanager
def open_output(name: str) -> Generator[IO[bytes]]:
    """A new file in the same way; `-` is standard output."""
    if name == STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _opened(name, "xb") as file:
        yield file


def _opened(name: str, mode: str) -> IO[bytes]:
    try:
        if name.endswith(".gz"):
            return cast("IO[bytes]", gzip.open(name, mode, compresslevel=6))
        return cast("IO[bytes]", Path(name).open(mode))
    except OSError as problem:
        raise Misconfigured(f"{name}: {problem.strerror or problem}") from None


_AT_ONCE: Final = 1_024
_PROGRESS_INTERVAL_SECONDS: Final = 5.0
_ON_A_TERMINAL_SECONDS: Final = 0.2
_MAX_CALLS: Final = 5
_WIDTH: Final = 78

type Clock = Callable[[], float]


class VerificationProgress:
    """Tells how far it is: on a terminal in one line that changes, elsewhere now and then."""

    def __init__(self, size: int | None, clock: Clock = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._began = self._reported_at = clock()
        self._is_terminal = sys.stderr.isatty()

    def start(self) -> None:
        """The first line is there: how long it took to come is not the proof's time."""
        self._began = self._reported_at = self._clock()

    @property
    def seconds(self) -> float:
        return max(1e-9, self._clock() - self._began)

    def reach(self, entries: int, size: int) -> None:
        now = self._clock()
        often = _ON_A_TERMINAL_SECONDS if self._is_terminal else _PROGRESS_INTERVAL_SECONDS
        if now - self._reported_at < often:
            return
        self._reported_at = now
        words = self._words(entries, size)
        sys.stderr.write(f"\r{words:{_WIDTH}.{_WIDTH}}" if self._is_terminal else f"{words}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r{'':{_WIDTH}}\r")
            sys.stderr.flush()

    def _words(self, entries: int, size: int) -> str:
        words = f"verified {entries:,} entries, {entries / self.seconds:,.0f} a second"
        if not self._size or not size:
            return words
        done = min(1.0, size / self._size)
        left = self.seconds / done - self.seconds
        return f"{words}, {done:.0%}, {left:.0f} s left"


def verify_lines(
    lines: Iterable[bytes], verifier: ExportVerifier, progress: VerificationProgress
) -> VerificationReport:
    """Go through all of it. Raises Misconfigured where it is no export."""
    size = 0
    try:
        for count, line in enumerate(lines):
            if not count:
                progress.start()
            verifier.take(line)
            size += len(line)
            if not count % _AT_ONCE:
                progress.reach(verifier.entries, size)
    except MalformedMessage as error:
        raise Misconfigured(str(error)) from None
    finally:
        progress.end()
    if not size:
        raise Misconfigured("this is no export of an audit log: it is empty")
    return verifier.finish()


def read_checkpoints(files: Iterable[str]) -> tuple[list[ChainCheckpoint], int]:
    """The checkpoints in these files, and how many of their lines are none."""
    found: list[ChainCheckpoint] = []
    strange = 0
    for name in files:
        with open_input(name) as file:
            for row in _checkpoints(read_export_lines(file)):
                if row is None:
                    strange += 1
                else:
                    found.append(row)
    return found, strange


def _checkpoints(lines: Iterator[bytes]) -> Iterator[ChainCheckpoint | None]:
    for line in lines:
        try:
            row = export.row_of(line).checkpoint
            yield None if row is None else export.checkpoint_of(row)
        except MalformedMessage:
            yield None


def size_of(name: str) -> int | None:
    """How much there is to read, where that is known before."""
    path = Path(name)
    return path.stat().st_size if path.is_file() and path.suffix != ".gz" else None


def make_proof(
    keys: Iterable[str],
    checkpoints: Iterable[ChainCheckpoint],
    interval: CheckpointInterval = USUAL_INTERVAL,
) -> ExportVerifier:
    trusted = frozenset(key.strip().lower() for key in keys)
    return ExportVerifier(is_valid_signature, trusted, checkpoints, interval)


def report_view(report: VerificationReport, seconds: float) -> Answer:
    return {
        "whole": report.is_whole,
        "signed": report.signed,
        "unsigned": report.unsigned,
        "entries": report.entries,
        "checkpoints": report.checkpoints,
        "seconds": round(seconds, 3),
        "microseconds_per_entry": _each(report, seconds),
        "nodes": [asdict(node) for node in report.nodes],
        "findings": [asdict(finding) for finding in report.findings],
        "more_findings": report.more,
        "open_calls": report.open_calls,
    }


def show_report(report: VerificationReport, seconds: float, notes: Iterable[str]) -> None:
    entries = count_noun(report.entries, "entry", "entries")
    counted = f"{entries}, {count_noun(report.checkpoints, 'checkpoint')}, {seconds:.1f} s"
    words, style = _headline(report)
    show_output(line_text(words, style), line_text(counted, "dim"))
    if report.findings:
        show_output("")
        for finding in report.findings:
            show_output(line_text(words_of(finding), "red"))
        if report.more:
            show_output(line_text(f"and {report.more:,} more", "red"))
    if report.nodes:
        rows = [
            (
                node.node,
                f"{node.first:,} to {node.last:,}" if node.entries else "none",
                f"{node.sealed:,}",
                f"{node.signed_to:,}" if node.signed_to else "nothing",
            )
            for node in report.nodes
        ]
        show_output("", build_table(("NODE", "ENTRIES", "SEALED", "SIGNED TO"), rows))
        keys = [(node.node, key) for node in report.nodes for key in node.keys]
        if keys:
            show_output("", build_table(("NODE", "KEY"), keys))
    told = [*_open_tails(report), *notes]
    if told:
        show_output("", *(line_text(note, "dim") for note in told))


def _headline(report: VerificationReport) -> tuple[str, str]:
    """The headline of a report, and its colour. Only a signed log is called intact."""
    if report.is_only_unsigned:
        return "The end of the audit log is not signed: nothing proves it.", "bold red"
    if report.findings:
        return "The audit log was changed.", "bold red"
    if not report.is_whole:
        return "Nothing is signed yet, so nothing is proved. Try again in seconds.", "bold yellow"
    if report.unsigned:
        signed = count_noun(report.signed, "entry", "entries")
        return f"The audit log is intact as far as it is signed: {signed}.", "green"
    return "The audit log is intact.", "bold green"


def words_of(defect: ChainDefect) -> str:
    """`altered: entry 512 of n-0a1b... does not follow ...`"""
    where = f"entry {defect.seq:,} of {defect.node} " if defect.node and defect.seq else ""
    return f"{defect.kind}: {where}{defect.words}"


def _open_tails(report: VerificationReport) -> Iterator[str]:
    for node in report.nodes:
        if node.unsigned:
            entries = "entry is" if node.unsigned == 1 else f"{node.unsigned:,} entries are"
            yield f"{node.node}: the last {entries} not signed yet."
    if report.open_calls:
        named = ", ".join(report.open_calls[:_MAX_CALLS])
        more = "" if len(report.open_calls) <= _MAX_CALLS else " and others"
        yield f"These calls have no end in the log, and may still run: {named}{more}."


def _each(report: VerificationReport, seconds: float) -> float:
    return round(seconds * 1e6 / max(1, report.entries), 2)


RESULTS: Final = {
    "SUCCESS": "green",
    "FAILURE": "red",
    "BLOCKED": "yellow",
    "PENDING": "dim",
    "UNKNOWN": "bold red",
}
_COLUMNS: Final = ("TIME", "PRINCIPAL", "TYPE", "RESULT", "SERVER/TOOL", "TRACE")
POLL_SECONDS: Final = 1.0
OVERLAP: Final = timedelta(seconds=3)
"""An entry may be kept a little later than one that happened after it."""

_FILTERS: Final[tuple[Decorator, ...]] = (
    click.option("--principal", metavar="ID", help="Only actions of this principal."),
    click.option(
        "--server", metavar="NAME", shell_complete=complete_servers, help="Only this server."
    ),
    click.option("--tool", metavar="NAME", help="Only this tool, by its name at the server."),
    click.option("--type", metavar="TYPES", help="Only these types, such as tool_executed."),
    click.option(
        "--result", metavar="RESULT", help="SUCCESS, FAILURE, BLOCKED, PENDING or UNKNOWN."
    ),
)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select entries."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@click.group("audit", cls=DefaultListGroup)
def audit_command() -> None:
    """Search, verify and export the audit log.

    You need admin access to the gateway. With --offline the command reads the database.

    \b
    Examples:
      comity audit
      comity audit tail -f
      comity audit show 06gu44bi
      comity audit verify
    """


@audit_command.command("tail")
@limit_option(20, 1000)
@click.option("-f", "--follow", is_flag=True, help="Print new entries until you press Ctrl-C.")
@filter_options
@store_options
def tail(limit: int, *, follow: bool, **said: Any) -> None:
    """Show the latest entries, oldest first.

    With -o json the command prints one entry per line.

    \b
    Examples:
      comity audit tail
      comity audit tail -f --server files
      comity audit tail -n 100 -o json
    """
    records, query = AdminClient(), _query(said)
    found = records.get("audit", **query, limit=str(limit))["entries"]
    seen = _print_new(list(reversed(found)), {}, has_header=True)
    while follow:
        time.sleep(POLL_SECONDS)
        since = max(seen.values(), default=datetime.now(UTC)) - OVERLAP
        page = _read_pages(records, {**query, "order": "oldest", "since": since.isoformat()}, 1000)
        seen = {key: at for key, at in seen.items() if at >= since}
        seen = _print_new(page, seen, has_header=False)


def _print_new(
    entries: list[Answer], seen: dict[str, datetime], *, has_header: bool
) -> dict[str, datetime]:
    """Print those that were not printed yet."""
    keys = [f"{entry['node']} {entry['seq']}" for entry in entries]
    new = [entry for key, entry in zip(keys, entries, strict=True) if key not in seen]
    if current_options().is_for_programs:
        for entry in new:
            click.echo(_one_line(entry))
    elif new:
        show_output(_table([_cells(entry) for entry in new], has_header=has_header))
    times = (datetime.fromisoformat(entry["at"]) for entry in entries)
    return seen | dict(zip(keys, times, strict=True))


@audit_command.command("list")
@filter_options
@click.option("--trace", metavar="TRACE", help="Only this trace.")
@click.option("--call", metavar="CALL", help="Only this call.")
@click.option("--since", metavar="TIME", help="From then on: 2h, 7d or 2026-11-15T08:30:00+01:00.")
@click.option("--until", metavar="TIME", help="Before then, in the same form.")
@click.option("--oldest", is_flag=True, help="List the oldest entries first.")
@limit_option(50)
@store_options
def list_entries(limit: int, *, oldest: bool, **said: Any) -> None:
    """List entries of the audit log, the newest first.

    \b
    Examples:
      comity audit list --since 2h
      comity audit list --principal agent:ci --result FAILURE
      comity audit list --type tool_executed -n 10 -o json
    """
    query = _query(said) | {"order": "oldest" if oldest else "newest"}
    entries = _read_pages(AdminClient(), query, limit)

    def print_table() -> None:
        if not entries:
            show_output(line_text("No entry matches."))
            return
        rows = [_cells(entry) for entry in entries]
        show_output(_table(rows, has_header=True))
        if len(entries) == limit:
            show_hint(f"These are the first {limit}. --limit shows more.")
        if not fits_output(_COLUMNS, rows):
            show_hint("`-o wide` also shows traces. `comity audit show TRACE` shows one.")

    names = [f"{entry['node']}/{entry['seq']}" for entry in entries]
    show_document({"entries": entries}, print_table, names)


@audit_command.command("show")
@click.argument("name", metavar="ID")
@store_options
def show_timeline(name: str) -> None:
    """Show everything that happened in one trace.

    ID is a trace, a call, or an approval request. You can shorten the id of an approval request.

    \b
    Examples:
      comity audit show 06gu44bi
    """
    story = AdminClient().get("audit", "timeline", name)
    show_document(story, lambda: _print_timeline(story), [name])


def _print_timeline(story: Answer) -> None:
    show_output(line_text(story["headline"], "bold"), "")
    rows = [
        (
            line_text(_time(each["at"]), "dim"),
            line_text(f"+{format_span(timedelta(milliseconds=each['after_ms']))}", "dim"),
            _print_entry(each),
        )
        for each in story["events"]
    ]
    show_output(build_table(("", "", ""), rows))
    if story["unknown"]:
        show_output("", line_text("The audit log does not say:", "bold yellow"))
        show_output(*(line_text(f"  {each}", "yellow") for each in story["unknown"]))
    traces = dict.fromkeys(entry["trace"] for entry in story["entries"] if entry["trace"])
    show_output("", line_text(f"trace {', '.join(traces) or 'none'}", "dim"))


def _print_entry(each: Answer) -> Text:
    words = line_text(each["text"], "yellow" if each["is_bad"] else "")
    for more in each["more"]:
        words.append("\n").append_text(paragraph_text(f"  {more}", "dim"))
    return words


@audit_command.command("verify")
@click.argument("file", required=False)
@click.option("--key", "keys", metavar="HEX", multiple=True, help="Trust this public key only.")
@click.option(
    "--checkpoints",
    "files",
    metavar="FILE",
    multiple=True,
    help="Checkpoints stored elsewhere. They reveal a removed end.",
)
@click.option(
    "--every",
    metavar="N",
    default=USUAL_INTERVAL.max_entries,
    show_default=True,
    help="The gateway's audit.checkpoint_entries.",
)
@click.option(
    "--within",
    metavar="TIME",
    default="10s",
    show_default=True,
    help="The gateway's audit.checkpoint_interval.",
)
@store_options
def verify_command(
    file: str | None, keys: tuple[str, ...], files: tuple[str, ...], **said: Any
) -> int:
    """Verify that the audit log is complete and unchanged.

    FILE is an export, and - is standard input. The default is the audit log of the gateway. The
    command names the first entry that is wrong. Only signed entries are proved. A gateway signs
    within seconds, so older entries without a signature are a finding. Exits with 1 if there is a
    finding.

    \b
    Examples:
      comity audit verify
      comity audit verify audit.jsonl.gz --key 3f9c…
      comity audit verify --offline
    """
    # Read before the audit log, so that no checkpoint is newer than the entries.
    checkpoints, strange = read_checkpoints(files)
    within = ConfigValue(said["within"], "--within").duration()
    proof = make_proof(keys, checkpoints, CheckpointInterval(said["every"], within))
    progress = VerificationProgress(None if file in (None, STDIO) else size_of(file or ""))
    if file is None:
        report = verify_lines(fetch_export_lines(), proof, progress)
    else:
        with open_input(file) as opened:
            report = verify_lines(read_export_lines(opened), proof, progress)
    seconds = progress.seconds
    notes = _notes(report, keys, files, strange)
    show_document(report_view(report, seconds), lambda: show_report(report, seconds, notes))
    return FAILED if report.findings else DONE


def _notes(
    report: VerificationReport, keys: tuple[str, ...], files: tuple[str, ...], strange: int
) -> list[str]:
    notes: list[str] = []
    if not keys and any(node.keys for node in report.nodes):
        notes.append("No key given: compare the keys above with those you know, or use --key.")
    if not files:
        notes.append("To detect truncation, pass --checkpoints with a copy stored elsewhere.")
    if strange:
        notes.append(f"Ignored {count_noun(strange, 'line')} of the checkpoints: not readable.")
    return notes


@audit_command.command("export")
@click.option(
    "--file",
    metavar="FILE",
    default=STDIO,
    help="New file, compressed if its name ends in .gz. Default: standard output.",
)
@store_options
def export_command(file: str) -> None:
    """Export the audit log as JSON lines.

    `comity audit verify FILE` verifies an export on any machine.

    \b
    Examples:
      comity audit export --file audit.jsonl.gz
      comity audit export --offline > audit.jsonl
    """
    with open_output(file) as opened:
        for line in fetch_export_lines():
            opened.write(line + b"\n")


@audit_command.command("key")
@store_options
def key() -> int:
    """Show the public key that signs the audit log.

    Exits with 5 if there is no key.

    \b
    Examples:
      comity audit key
      comity audit key -o json
    """
    found = AdminClient().get("audit", "key")

    def print_table() -> None:
        if found["key"]:
            show_output(build_table(("", ""), (("key", found["key"]), ("node", found["node"]))))
        else:
            show_output(line_text("The audit log is not signed.", "yellow"))
            show_hint("Set key_file in [audit].")

    show_document(found, print_table, [found["key"]] if found["key"] else [])
    return DONE if found["key"] else NOT_FOUND


def _query(fields: dict[str, Any]) -> dict[str, str]:
    names = ("server", "tool", "type", "result", "trace", "call")
    query = {name: fields[name] for name in names if fields.get(name)}
    if fields["principal"]:
        query["actor"] = fields["principal"]
    return query | {name: _ago(fields[name]) for name in ("since", "until") if fields.get(name)}


def _ago(text: str) -> str:
    """A time, or a while ago."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return (datetime.now(UTC) - ConfigValue(text, "the time").duration()).isoformat()
    return (at if at.tzinfo is not None else at.astimezone()).isoformat()


def _read_pages(records: AdminClient, query: dict[str, str], limit: int) -> list[Answer]:
    """Page after page, up to the limit."""
    found: list[Answer] = []
    while len(found) < limit:
        page = records.get("audit", **query, limit=str(min(1000, limit - len(found))))
        found += page["entries"]
        if "next" not in page:
            break
        query = {**query, "cursor": page["next"]}
    return found


def _table(rows: Sequence[Sequence[Text]], *, has_header: bool) -> RenderableType:
    # A narrow table has no room for the trace, which is the last column.
    count = len(_COLUMNS) - (not fits_output(_COLUMNS, rows))
    header = _COLUMNS if has_header else ("",) * len(_COLUMNS)
    return build_table(header[:count], [row[:count] for row in rows])


def _cells(entry: Answer) -> tuple[Text, ...]:
    what, result = entry["type"].removeprefix(OURS).lower().replace("_", " "), entry["result"]
    if is_waiting(entry["type"], entry["details"] or {}):
        # Kept as a refused call, which readers would take for a denial.
        what, result = "waiting for approval", "PENDING"
    return (
        line_text(_day_and_time(entry["at"]), "dim"),
        line_text(entry["actor"]),
        line_text(what),
        line_text(result, RESULTS.get(result, "")),
        _place(entry),
        line_text(entry["trace"], "dim"),
    )


def _place(entry: Answer) -> Text:
    return line_text("/".join(each for each in (entry["server"], entry["tool"]) if each))


def _time(text: str) -> str:
    """A time of this place, as people read it: of today without its date."""
    at = datetime.fromisoformat(text).astimezone()
    day = "" if at.date() == datetime.now(UTC).astimezone().date() else f"{at:%Y-%m-%d} "
    return f"{day}{at:%H:%M:%S}.{at.microsecond // 1000:03}"


def _day_and_time(text: str) -> str:
    """Return a local time. The date is missing for today, and the year for this year."""
    at, now = datetime.fromisoformat(text).astimezone(), datetime.now(UTC).astimezone()
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    return f"{at:%m-%d %H:%M:%S}" if at.year == now.year else f"{at:%Y-%m-%d %H:%M:%S}"


def _one_line(entry: Answer) -> str:
    return json.dumps(entry, ensure_ascii=True)
