"""`comity completion`: the script by which a shell completes commands, options and names."""

import click
from click.shell_completion import get_completion_class

from comity.cli.main import COMPLETING, comity


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that lets a shell complete commands and names.

    \b
    bash:  eval "$(comity completion bash)"    in ~/.bashrc
    zsh:   eval "$(comity completion zsh)"     in ~/.zshrc
    fish:  comity completion fish | source     in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "the choices are those that click has"
    click.echo(kind(comity, {}, "comity", COMPLETING).source())
