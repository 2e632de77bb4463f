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
    check_running_servers,
    findings_table,
)
from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import CliCommand, config_options, current_options
from comity.cli.output import line_text, show_document, show_output


@click.command("doctor", cls=CliCommand)
@config_options
def doctor_command() -> int:
    """Diagnose machine, configuration, servers and clients.

    The command tests this machine, the configuration, the port, and the clients that use Comity.
    It also tests what the configuration names: servers, the database, NATS, issuers and extras.
    It starts no server. Exits with 1 if there is a problem.

    \b
    Examples:
      comity doctor
      comity doctor -c comity.toml -o json
    """
    findings = list(_run_checks(current_options().config))
    document = {"findings": [each.as_json() for each in findings]}
    show_document(document, lambda: _print_findings(findings), [each.about for each in findings])
    return FAILED if any(each.verdict == "problem" for each in findings) else DONE


def _run_checks(config: Path | None) -> Iterator[Finding]:
    yield from check_machine(os.environ)
    source = ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True)
    settings, findings = check_configuration(source)
    failures = {each.about: each for each in check_running_servers(config)}
    for each in findings:
        yield failures.pop(each.about, each) if each.verdict == "ok" else each
    yield from failures.values()
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
        show_output(line_text("No problems found.", "bold green"))
        return
    told = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items() if count]
    style = STYLES["problem" if counts["problem"] else "warning"]
    show_output(line_text(f"{' and '.join(told)}.", style))
