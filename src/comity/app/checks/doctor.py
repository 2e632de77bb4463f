"""`comity doctor`: checks a configuration, the machine, the port and the clients."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from comity.app.checks.configuration import check_configuration, check_engines
from comity.app.checks.machine import (
    STYLES,
    Finding,
    check_clients,
    check_machine,
    check_port,
    findings_table,
)
from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import json_option
from comity.cli.output import line_text, show_json, show_output


@click.command("doctor")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@json_option
def doctor_command(config: Path | None, *, as_json: bool) -> int:
    """Find what is wrong, and say what to do about it.

    Tests this machine, the configuration (CONFIG, or the one that `comity serve` would find), the
    programs and addresses of its servers, the store, NATS, issuers and extras that it names, the
    port, and the clients that are configured to use Comity. Starts none of them. The exit status is
    1 if there is a problem.
    """
    findings = list(_run_checks(config))
    if as_json:
        show_json({"findings": [each.as_json() for each in findings]})
    else:
        _print_findings(findings)
    return SOMETHING_WRONG if any(each.verdict == "problem" for each in findings) else FINE


def _run_checks(config: Path | None) -> Iterator[Finding]:
    yield from check_machine(os.environ)
    source = ConfigSource(Path.cwd(), Path.home(), os.environ, config)
    settings, findings = check_configuration(source)
    yield from findings
    if settings is not None:
        yield from check_engines(settings)
    running, port = check_port(settings or Settings())
    yield port
    yield from check_clients(os.environ, running)


def _print_findings(findings: list[Finding]) -> None:
    show_output(findings_table(findings), "")
    counts = {
        verdict: sum(each.verdict == verdict for each in findings)
        for verdict in ("problem", "warning")
    }
    if not any(counts.values()):
        show_output(line_text("All is well.", "bold green"))
        return
    told = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items() if count]
    style = STYLES["problem" if counts["problem"] else "warning"]
    show_output(line_text(f"{' and '.join(told)}.", style))
