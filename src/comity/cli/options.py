"""The options that several commands have in common, and groups that list unless told otherwise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from comity.cli.api_client import KEY, URL_VARIABLE, find_url, read_key

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _find_url(context: click.Context, _: click.Parameter, url: str | None) -> str | None:
    if url or context.resilient_parsing:
        return url
    config: Path | None = context.params.get("config")
    return find_url(config)


def _keep_key(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    if file is not None:
        context.meta[KEY] = read_key(file)


_url_option: Final[Decorator] = click.option(
    "--url",
    metavar="URL",
    envvar=URL_VARIABLE,
    show_envvar=True,
    callback=_find_url,
    help="The gateway to ask; that of the configuration here unless given.",
)
_key_option: Final[Decorator] = click.option(
    "--key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar="COMITY_KEY_FILE",
    expose_value=False,
    callback=_keep_key,
    help="Show the key in this file to the gateway; COMITY_KEY may hold the key itself.",
)
json_option: Final[Decorator] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for programs."
)


def url_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which gateway is asked, and who asks it."""
    return _url_option(_key_option(command))


class DefaultListGroup(click.Group):
    """A group that lists, unless one of its commands is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        # A shell that completes the next word is told of all commands, and not of this one's names.
        completing = ctx.resilient_parsing and not args
        return super().parse_args(ctx, args if named or completing else ["list", *args])
