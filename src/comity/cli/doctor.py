"""`comity doctor`: finds what is wrong, and says what to do about it."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from comity.cli.configured import look_at_the_configuration
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.findings import STYLES, Finding
from comity.cli.machine import look_at_the_machine
from comity.cli.met import look_at_the_clients, look_at_the_port
from comity.cli.options import json_option
from comity.cli.show import plain, show, show_json, table
from comity.config import Settings, Source


@click.command("doctor")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@json_option
def command(config: Path | None, *, as_json: bool) -> int:
    """Find what is wrong, and say what to do about it.

    Looks at this machine, at the configuration (CONFIG, or the one that `comity serve` would
    find), at the programs and addresses of its servers, at the port, and at the clients in whose
    configurations Comity stands. Starts none of them. The exit status is 1 if there is a problem.
    """
    findings = list(_look(config))
    if as_json:
        show_json({"findings": [_told(finding) for finding in findings]})
    else:
        _show(findings)
    return SOMETHING_WRONG if any(each.verdict == "problem" for each in findings) else FINE


def _look(config: Path | None) -> Iterator[Finding]:
    yield from look_at_the_machine(os.environ)
    source = Source(Path.cwd(), Path.home(), os.environ, config)
    settings, findings = look_at_the_configuration(source)
    yield from findings
    running, port = look_at_the_port(settings or Settings())
    yield port
    yield from look_at_the_clients(os.environ, running)


def _told(finding: Finding) -> dict[str, str | None]:
    return {
        "verdict": finding.verdict,
        "about": finding.about,
        "told": finding.told,
        "remedy": finding.remedy or None,
    }


def _show(findings: list[Finding]) -> None:
    rows = [
        (
            plain(each.verdict, STYLES[each.verdict]),
            each.about,
            f"{each.told}  ->  {each.remedy}" if each.remedy else each.told,
        )
        for each in findings
    ]
    show(table(("", "", ""), rows), "")
    counts = {
        verdict: sum(each.verdict == verdict for each in findings)
        for verdict in ("problem", "warning")
    }
    if not any(counts.values()):
        show(plain("All is well.", "bold green"))
        return
    told = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items() if count]
    style = STYLES["problem" if counts["problem"] else "warning"]
    show(plain(f"{' and '.join(told)}.", style))
