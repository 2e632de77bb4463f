"""`comity completion`, and the names that a shell completes."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import click
from click.shell_completion import get_completion_class

from comity.cli.api_client import ApiClient
from comity.cli.main import COMPLETING, comity
from comity.cli.options import CliCommand, options_in
from comity.cli.target import connect_gateway
from comity.clients.applications import BY_NAME
from comity.errors import Misconfigured, Unavailable

type Complete = Callable[[click.Context, click.Parameter, str], list[str]]

COMPLETION_TIMEOUT: Final = timedelta(seconds=2)
MOST: Final = 200


def complete_clients(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    return [name for name in BY_NAME if name.startswith(typed)]


def complete_servers(context: click.Context, _: click.Parameter, typed: str) -> list[str]:
    return _names(context, lambda gateway: gateway.get("servers")["servers"], "id", typed)


def complete_tools(context: click.Context, _: click.Parameter, typed: str) -> list[str]:
    # One page holds more names than anybody completes from.
    return _names(context, lambda gateway: gateway.get("tools")["tools"], "name", typed)


def complete_topics(context: click.Context, _: click.Parameter, typed: str) -> list[str]:
    return _names(context, lambda gateway: gateway.get("topics")["topics"], "topic", typed)


def complete_views(context: click.Context, _: click.Parameter, typed: str) -> list[str]:
    return _names(context, lambda gateway: gateway.get("views")["views"], "name", typed)


def _names(
    context: click.Context,
    ask: Callable[[ApiClient], list[dict[str, str]]],
    key: str,
    typed: str,
) -> list[str]:
    try:
        found = ask(connect_gateway(COMPLETION_TIMEOUT, options_in(context)))
    except (Unavailable, Misconfigured):
        return []
    return [each[key] for each in found if each[key].startswith(typed)][:MOST]


@click.command("completion", cls=CliCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(comity completion bash)"    in ~/.bashrc
    zsh:   eval "$(comity completion zsh)"     in ~/.zshrc
    fish:  comity completion fish | source     in ~/.config/fish/config.fish

    \b
    Examples:
      comity completion bash
    """
    kind = get_completion_class(shell)
    assert kind is not None, "the choices are those that click has"
    click.echo(kind(comity, {}, "comity", COMPLETING).source())
