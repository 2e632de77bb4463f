"""Names that a shell completes: of clients, and of what a running gateway has.

A shell waits for each answer, so a gateway that is away, or slow, completes nothing and no more.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import click

from comity.cli.asking import Gateway
from comity.cli.clients import BY_NAME
from comity.cli.gateway_url import find_url
from comity.wire.errors import Misconfigured, Unavailable

type Complete = Callable[[click.Context, click.Parameter, str], list[str]]

PATIENCE: Final = timedelta(seconds=2)
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


def _names(
    context: click.Context,
    ask: Callable[[Gateway], list[dict[str, str]]],
    key: str,
    typed: str,
) -> list[str]:
    try:
        url = context.params.get("url") or find_url(context.params.get("config"))
        found = ask(Gateway(url, PATIENCE))
    except (Unavailable, Misconfigured):
        return []
    return [each[key] for each in found if each[key].startswith(typed)][:MOST]
