"""`comity check`: a configuration looked over before anything is served."""

import os
from pathlib import Path
from typing import Final

import click

from comity.app.reaching import described
from comity.cli.asking import Answer
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.engines import look_at_the_engines
from comity.cli.findings import Finding, findings_table
from comity.cli.inprocess import gateway_before
from comity.cli.options import json_option
from comity.cli.show import paragraphs, plain, short, show, show_json, state, table
from comity.config import Found, ServerSettings, Source
from comity.rules.documents import Mistake, Mistakes
from comity.rules.phrases import start_sentence
from comity.wire.errors import Misconfigured

LAST_LINES: Final = 10


@click.command("check")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--start", is_flag=True, help="Start every server once, and tell how that went.")
@click.option("--offline", is_flag=True, help="Do not connect to the store, NATS or issuers.")
@json_option
def command(config: Path | None, *, start: bool, offline: bool, as_json: bool) -> int:
    """Validate a configuration, and test the engines that it names.

    CONFIG is found as `comity serve` finds it unless given. Tests that the store answers and has
    the right schema, that the pepper is set, that NATS is new enough, that issuers offer keys, and
    that the extras for all of them are installed. The exit status is 1 if there is a mistake, if a
    test fails, or if a server that was started is not ready.
    """
    if config is not None and not config.exists():
        raise Misconfigured(f"{config}: there is no such file; check the path")
    try:
        found = Source(Path.cwd(), Path.home(), os.environ, config).find()
    except Misconfigured as problem:
        return _tell_mistakes(problem, as_json)
    engines = [] if offline else look_at_the_engines(found.settings)
    started = _started(found) if start else None
    if as_json:
        tested = [each.as_json() for each in engines]
        show_json({**_told(found), "mistakes": [], "engines": tested, "started": started})
    else:
        _show(found, engines, started)
    failed = any(server["state"] != "connected" for server in started or ())
    return SOMETHING_WRONG if failed or _problems(engines) else FINE


def _problems(engines: list[Finding]) -> int:
    return sum(each.verdict == "problem" for each in engines)


def mistakes_of(problem: Misconfigured) -> list[Mistake]:
    """Each mistake by itself; none where the problem is of another kind."""
    told: object = problem.args[0]
    if isinstance(told, Mistakes):
        return told.found
    return [told] if isinstance(told, Mistake) else []


def _tell_mistakes(problem: Misconfigured, as_json: bool) -> int:
    mistakes = mistakes_of(problem)
    if not mistakes:
        raise problem
    if as_json:
        listed = [
            {
                "file": mistake.file,
                "line": mistake.line,
                "key": mistake.keys,
                "problem": mistake.problem,
            }
            for mistake in mistakes
        ]
        show_json({"files": sorted({each.file for each in mistakes}), "mistakes": listed})
    else:
        show(*(plain(mistake) for mistake in mistakes))
        count = "One mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        show("", plain(f"{count}; nothing would be served.", "bold red"))
    return SOMETHING_WRONG


def _started(found: Found) -> list[Answer]:
    with gateway_before(found.settings, lambda _: True) as gateway:
        ids = [server["id"] for server in gateway.get("servers")["servers"]]
        return [gateway.get("servers", each) for each in ids]


def _told(found: Found) -> dict[str, object]:
    return {
        "files": [str(path) for path in found.files],
        "passed_over": [str(path) for path in found.passed_over],
        "listen": f"{found.settings.host}:{found.settings.port}",
        "servers": [
            {"id": server.id, "disabled": server.disabled, **described(server)}
            for server in found.settings.servers
        ],
    }


def _show(found: Found, engines: list[Finding], started: list[Answer] | None) -> None:
    for line in found.told():
        show(plain(start_sentence(line)))
    rows = [_row(server) for server in found.settings.servers]
    if rows:
        show("", table(("SERVER", "OVER", "REACHED", ""), rows))
    if engines:
        show("", findings_table(engines))
    if started is not None:
        _show_started(started)
    if count := _problems(engines):
        told = "One test failed" if count == 1 else f"{count} tests failed"
        show("", plain(f"{told}; `comity serve` would not work as configured.", "bold red"))
    elif started is not None:
        return
    elif rows:
        names = ", ".join(short(path) for path in found.files)
        show("", plain(f"No mistakes in {names}.", "bold green"))
    else:
        show("", plain("No mistakes; but there are no servers to serve.", "yellow"))


def _row(server: ServerSettings) -> tuple[str, str, str, str]:
    how = described(server)
    return server.id, how["transport"], how["reached"], "disabled" if server.disabled else ""


def _show_started(started: list[Answer]) -> None:
    rows = [
        (each["id"], state(each["state"], each["reason"]), str(each["tools"]), each["reason"])
        for each in started
    ]
    show("", table(("STARTED", "STATE", "TOOLS", "REASON"), rows))
    failed = [each for each in started if each["state"] != "connected"]
    for each in failed:
        if each["lines"]:
            show("", plain(f"What {each['id']} last said:", "bold"))
            show(paragraphs("\n".join(each["lines"][-LAST_LINES:])))
    if failed:
        show("", plain(f"Not ready: {', '.join(each['id'] for each in failed)}.", "bold red"))
    else:
        show("", plain("Every server was started and is ready.", "bold green"))
