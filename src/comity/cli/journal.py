"""`comity journal`: what happened, the story of one call, and the proof that nothing is missing."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.text import Text

from comity.cli.administering import Records, config_option
from comity.cli.asking import Answer
from comity.cli.completing import complete_servers
from comity.cli.ends import FINE, NOT_SIGNED, SOMETHING_WRONG
from comity.cli.exporting import STDIO, lines, read, reading, writing
from comity.cli.options import Decorator, json_option, url_option
from comity.cli.show import paragraphs, plain, show, show_json, stacked, table, width
from comity.cli.verifying import (
    Progress,
    make_proof,
    outside,
    prove,
    report_view,
    show_report,
    size_of,
)
from comity.rules.documents import Written
from comity.rules.phrases import count_noun
from comity.rules.proof import Report
from comity.rules.proof_chain import USUAL_INTERVAL, CheckpointInterval
from comity.rules.stories import is_waiting, span
from comity.wire.audit import OURS
from comity.wire.errors import Misconfigured, Unavailable

RESULTS: Final = {
    "SUCCESS": "green",
    "FAILURE": "red",
    "BLOCKED": "yellow",
    "PENDING": "dim",
    "UNKNOWN": "bold red",
}
_COLUMNS: Final = ("TIME", "ACTOR", "TYPE", "RESULT", "SERVER/TOOL", "TRACE")
_ON_FIRST_LINE: Final = 4
"""How many of the columns stand on the first of two lines, where the terminal is narrow."""

_WIDE: Final = 115
POLL_SECONDS: Final = 1.0
OVERLAP: Final = timedelta(seconds=3)
"""An entry may be kept a little later than one that happened after it."""

_FILTERS: Final[tuple[Decorator, ...]] = (
    click.option("--actor", metavar="PARTY", help="Who did it."),
    click.option("--server", metavar="NAME", shell_complete=complete_servers, help="With what."),
    click.option("--tool", metavar="NAME", help="With which tool, by its own name."),
    click.option("--type", metavar="TYPES", help="What, as tool_executed,ask_answered."),
    click.option("--result", metavar="RESULT", help="SUCCESS, FAILURE, BLOCKED, PENDING, UNKNOWN."),
)


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """By what entries are found."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@click.group("journal")
def command() -> None:
    """Show what happened, prove that it is all there, and hand it to others.

    A running gateway is asked, by somebody who may read everything there. Without one, or with
    --offline, the store is read.
    """


@command.command("tail")
@click.option(
    "-n", "--lines", "count", metavar="N", default=20, show_default=True, help="How many."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until interrupted.")
@filters
@url_option
@config_option
@json_option
def tail(count: int, follow: bool, url: str, config: Path | None, **said: Any) -> int:
    """Show what happened last; with --json, one entry a line."""
    records, query = Records(url, config), _query(said)
    count = min(max(1, count), 1000)
    found = records.get("journal", **query, limit=str(count))["entries"]
    seen = _print_new(list(reversed(found)), {}, as_json=said["as_json"], has_header=True)
    while follow:
        time.sleep(POLL_SECONDS)
        since = max(seen.values(), default=datetime.now(UTC)) - OVERLAP
        page = _all(records, {**query, "order": "oldest", "since": since.isoformat()}, 1000)
        seen = {key: at for key, at in seen.items() if at >= since}
        seen = _print_new(page, seen, as_json=said["as_json"], has_header=False)
    return FINE


def _print_new(
    entries: list[Answer], seen: dict[str, datetime], *, as_json: bool, has_header: bool
) -> dict[str, datetime]:
    """Print those that were not printed yet."""
    keys = [f"{entry['node']} {entry['seq']}" for entry in entries]
    new = [entry for key, entry in zip(keys, entries, strict=True) if key not in seen]
    if as_json:
        for entry in new:
            click.echo(_one_line(entry))
    elif new:
        show(_table(new, has_header=has_header))
    times = (datetime.fromisoformat(entry["at"]) for entry in entries)
    return seen | dict(zip(keys, times, strict=True))


@command.command("search")
@filters
@click.option("--trace", metavar="TRACE", help="Of one trace.")
@click.option("--call", metavar="CALL", help="Of one attempt.")
@click.option("--since", metavar="WHEN", help="From then on: 2h, 7d, or 2026-11-15T08:30:00+01:00.")
@click.option("--until", metavar="WHEN", help="Before then, in the same way.")
@click.option("--oldest", is_flag=True, help="The oldest first.")
@click.option("--limit", metavar="N", default=50, show_default=True, help="At most this many.")
@url_option
@config_option
@json_option
def search(limit: int, oldest: bool, url: str, config: Path | None, **said: Any) -> int:
    """Find what happened; the exit status is 1 if nothing did."""
    query = _query(said) | {"order": "oldest" if oldest else "newest"}
    limit = max(1, limit)
    entries = _all(Records(url, config), query, limit)
    if said["as_json"]:
        show_json({"entries": entries})
    elif entries:
        show(_table(entries, has_header=True))
        if len(entries) == limit:
            show("", plain(f"These are the first {limit}; --limit shows more.", "dim"))
    else:
        show(plain("Nothing like that is written down."))
    return FINE if entries else SOMETHING_WRONG


@command.command("show")
@click.argument("name", metavar="TRACE")
@url_option
@config_option
@json_option
def tell(name: str, url: str, config: Path | None, as_json: bool) -> int:
    """Tell the story of TRACE, in words and times.

    The id of a call will do as well, and so will the id of an ask, or its first letters as
    `comity asks` shows them.
    """
    story = Records(url, config).get("journal", "story", name)
    if as_json:
        show_json(story)
        return FINE
    show(plain(story["headline"], "bold"), "")
    rows = [
        (
            plain(_time(each["at"]), "dim"),
            plain(f"+{span(timedelta(milliseconds=each['after_ms']))}", "dim"),
            _told(each),
        )
        for each in story["happened"]
    ]
    show(table(("", "", ""), rows))
    if story["unknown"]:
        show("", plain("What nobody can tell from the journal:", "bold yellow"))
        show(*(plain(f"  {each}", "yellow") for each in story["unknown"]))
    traces = dict.fromkeys(entry["trace"] for entry in story["entries"] if entry["trace"])
    show("", plain(f"trace {', '.join(traces) or 'none'}", "dim"))
    return FINE


def _told(each: Answer) -> Text:
    words = plain(each["words"], "yellow" if each["is_bad"] else "")
    for more in each["more"]:
        words.append("\n").append_text(paragraphs(f"  {more}", "dim"))
    return words


@command.command("verify")
@click.argument("file", required=False)
@click.option("--key", "keys", metavar="HEX", multiple=True, help="Trust this public key alone.")
@click.option(
    "--checkpoints",
    "files",
    metavar="FILE",
    multiple=True,
    help="Checkpoints that were kept elsewhere: a tail that was cut off is missed by these.",
)
@click.option(
    "--every",
    metavar="N",
    default=USUAL_INTERVAL.every,
    show_default=True,
    help="The gateway's journal.checkpoint_every.",
)
@click.option(
    "--within",
    metavar="TIME",
    default="10s",
    show_default=True,
    help="The gateway's journal.checkpoint_within.",
)
@url_option
@config_option
@json_option
def verify(file: str | None, keys: tuple[str, ...], files: tuple[str, ...], **said: Any) -> int:
    """Prove that nothing was altered, removed, put in or moved, and name the first entry that was.

    FILE is an export, - is standard input; without it, the running gateway's journal is proved, or
    the store's. Only signed entries are proved. A gateway signs within seconds, so older entries
    without a signature are a finding. The exit status is 0 if nothing is wrong, 1 if something is,
    4 if signatures are missing and nothing else is wrong, and 2 if that cannot be said.
    """
    # Read before the journal is: then nothing in them is of an entry that came between.
    checkpoints, strange = outside(files)
    within = Written(said["within"], "--within").duration()
    proof = make_proof(keys, checkpoints, CheckpointInterval(said["every"], within))
    progress = Progress(None if file in (None, STDIO) else size_of(file or ""))
    try:
        if file is None:
            report = prove(lines(said["url"], said["config"]), proof, progress)
        else:
            with reading(file) as opened:
                report = prove(read(opened), proof, progress)
    except Unavailable as away:
        raise Misconfigured(str(away)) from None
    seconds = progress.seconds
    if said["as_json"]:
        show_json(report_view(report, seconds))
    else:
        show_report(report, seconds, _notes(report, keys, files, strange))
    if not report.findings:
        return FINE
    return NOT_SIGNED if report.is_only_unsigned else SOMETHING_WRONG


def _notes(
    report: Report, keys: tuple[str, ...], files: tuple[str, ...], strange: int
) -> list[str]:
    notes: list[str] = []
    if not keys and any(node.keys for node in report.nodes):
        notes.append("No key was named: compare those above with the ones you know, or use --key.")
    if not files:
        notes.append("Whether a tail was cut off is told by --checkpoints, kept elsewhere.")
    if strange:
        notes.append(
            f"Left out, since not readable: {count_noun(strange, 'line')} of the checkpoints."
        )
    return notes


@command.command("export")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default=STDIO,
    help="A new file for it, compressed if its name ends in .gz; unless given, standard output.",
)
@url_option
@config_option
def export(output: str, url: str, config: Path | None) -> int:
    """Write the whole journal as JSON lines, which `comity journal verify` proves anywhere."""
    with writing(output) as file:
        for line in lines(url, config):
            file.write(line + b"\n")
    return FINE


@command.command("key")
@url_option
@config_option
@json_option
def key(url: str, config: Path | None, as_json: bool) -> int:
    """Show the public key that signs this journal, and the name of its chain.

    The exit status is 1 if nobody signs it.
    """
    found = Records(url, config).get("journal", "key")
    if as_json:
        show_json(found)
    elif found["key"]:
        show(table(("", ""), (("key", found["key"]), ("node", found["node"]))))
    else:
        show(plain("Nobody signs this journal; name a file with key_file in [journal].", "yellow"))
    return FINE if found["key"] else SOMETHING_WRONG


def _query(said: dict[str, Any]) -> dict[str, str]:
    names = ("actor", "server", "tool", "type", "result", "trace", "call")
    query = {name: said[name] for name in names if said.get(name)}
    return query | {name: _ago(said[name]) for name in ("since", "until") if said.get(name)}


def _ago(said: str) -> str:
    """A time, or a while ago."""
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        return (datetime.now(UTC) - Written(said, "the time").duration()).isoformat()
    return (at if at.tzinfo is not None else at.astimezone()).isoformat()


def _all(records: Records, query: dict[str, str], limit: int) -> list[Answer]:
    """Page after page, up to the limit."""
    found: list[Answer] = []
    while len(found) < limit:
        page = records.get("journal", **query, limit=str(min(1000, limit - len(found))))
        found += page["entries"]
        if "next" not in page:
            break
        query = {**query, "cursor": page["next"]}
    return found


def _table(entries: list[Answer], *, has_header: bool) -> RenderableType:
    header = _COLUMNS if has_header else ("",) * len(_COLUMNS)
    rows = [_cells(entry) for entry in entries]
    # A trace that is cut in two is of no use to anybody.
    return table(header, rows) if width() >= _WIDE else stacked(header, rows, _ON_FIRST_LINE)


def _cells(entry: Answer) -> tuple[Text, ...]:
    what, result = entry["type"].removeprefix(OURS).lower().replace("_", " "), entry["result"]
    if is_waiting(entry["type"], entry["details"] or {}):
        # Kept as a refused call, which readers would take for a denial.
        what, result = "waiting for approval", "PENDING"
    return (
        plain(_day_and_time(entry["at"]), "dim"),
        plain(entry["actor"]),
        plain(what),
        plain(result, RESULTS.get(result, "")),
        _place(entry),
        plain(entry["trace"], "dim"),
    )


def _place(entry: Answer) -> Text:
    return plain("/".join(each for each in (entry["server"], entry["tool"]) if each))


def _time(written: str) -> str:
    """A time of this place, as people read it: of today without its date."""
    at = datetime.fromisoformat(written).astimezone()
    day = "" if at.date() == datetime.now(UTC).astimezone().date() else f"{at:%Y-%m-%d} "
    return f"{day}{at:%H:%M:%S}.{at.microsecond // 1000:03}"


def _day_and_time(written: str) -> str:
    """A time of this place, with its day; the year only where it is another one."""
    at = datetime.fromisoformat(written).astimezone()
    is_of_this_year = at.year == datetime.now(UTC).astimezone().year
    return f"{at:%m-%d %H:%M:%S}" if is_of_this_year else f"{at:%Y-%m-%d %H:%M:%S}"


def _one_line(entry: Answer) -> str:
    return json.dumps(entry, ensure_ascii=True)
