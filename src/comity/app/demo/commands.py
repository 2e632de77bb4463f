"""`comity demo`."""

from pathlib import Path

import click

from comity.cli.options import CliCommand


@click.command("demo", cls=CliCommand)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port to listen on. Default: 2664, or a free port if that is in use.",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the data, which stays at the end.",
)
@click.option("--no-traffic", is_flag=True, help="Start no sample agents.")
@click.option("--once", is_flag=True, help="End after the first approval was answered.")
def demo_command(port: int | None, keep: Path | None, *, no_traffic: bool, once: bool) -> None:
    """Try Comity with sample servers and agents.

    Starts a gateway in a temporary folder, with sample agents that call the tools of sample
    servers. One of them asks for your approval. The demo needs no network and no configuration.

    \b
    Examples:
      comity demo
      comity demo --keep demo --no-traffic
    """
    # Loaded only now: other commands need no gateway.
    from comity.app.demo.service import DemoOptions, run_demo

    options = DemoOptions(port, keep, has_traffic=not no_traffic, is_short=once)
    run_demo(options, click.echo)
