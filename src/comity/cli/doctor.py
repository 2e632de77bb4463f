"""`comity doctor`: finds what is wrong, and says what to do about it."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from comity.cli.configured import look_at_the_configuration
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.engines import look_at_the_engines
from comity.cli.findings import STYLES, Finding, findings_table
from comity.cli.machine import look_at_the_machine
from comity.cli.met import look_at_the_clients, look_at_the_port
from comity.cli.options import json_option
from comity.cli.show import plain, show, show_json
from comity.config import Settings, Source


@click.command("doctor")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@json_option
def command(config: Path | None, *, as_json: bool) -> int:
    """Find what is wrong, and say what to do about it.

    Tests this machine, the configuration (CONFIG, or the one that `comity serve` would find), the
    programs and addresses of its servers, the store, NATS, issuers and extras that it names, the
    port, and the clients that are configured to use Comity. Starts none of them. The exit status is
    1 if there is a problem.
    """
    findings = list(_look(config))
    if as_json:
        show_json({"findings": [each.as_json() for each in findings]})
    else:
        _show(findings)
    return SOMETHING_WRONG if any(each.verdict == "problem" for each in findings) else FINE


def _look(config: Path | None) -> Iterator[Finding]:
    yield from look_at_the_machine(os.environ)
    source = Source(Path.cwd(), Path.home(), os.environ, config)
    settings, findings = look_at_the_configuration(source)
    yield from findings
    if settings is not None:
        yield from look_at_the_engines(settings)
    running, port = look_at_the_port(settings or Settings())
    yield port
    yield from look_at_the_clients(os.environ, running)


def _show(findings: list[Finding]) -> None:
    show(findings_table(findings), "")
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
