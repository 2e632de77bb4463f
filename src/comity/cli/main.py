"""The `comity` program: the table of commands, and the exit status of each failure.

A command's module is imported when that command runs. Only a bug of ours ends in a traceback.
"""

import contextlib
import importlib
import logging
import os
import platform
import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem

from comity.cli.exit_status import (
    INTERRUPTED,
    NOT_REACHABLE,
    OPERATORS_MISTAKE,
    READER_GONE,
    suggest_name,
)
from comity.errors import Misconfigured, Unavailable

COMMANDS: Final = {
    "init": "Write a first configuration from the servers that your MCP clients have.",
    "check": "Validate a configuration, and test the engines that it names.",
    "serve": "Stand in front of the servers of a configuration.",
    "status": "Show how a running gateway is doing.",
    "servers": "Show the servers of a running gateway; restart, stop and start them.",
    "tools": "Show the tools that clients are offered.",
    "search": "Find the tools that fit what you want to do.",
    "call": "Call a tool and print what it gives.",
    "asks": "Show what waits for somebody's answer.",
    "approve": "Approve the ask ID: exactly what it shows may run, once.",
    "deny": "Deny the ask ID: it does not run.",
    "grants": "Show and change who may do what, and explain it.",
    "keys": "Give out API keys, replace them and take them back.",
    "parties": "Show who takes part; add parties, and keep them out.",
    "topic": "Talk in a topic, see who is there, and say what each may send.",
    "turns": "Say something to a model, and show the last turns.",
    "models": "Show which models there are, what they cost, and what was spent; try one.",
    "state": "Show the state that servers left, and its branches; roll it back.",
    "channels": "Show the channels of live servers, and say something in one.",
    "pushes": "Show what was pushed, where it went, and what came of it.",
    "webhooks": "Show where events are posted, what waits and what failed.",
    "permissions": "Show what servers need to do their work; approve it, or deny it.",
    "features": "Show what live servers would do by themselves; enable it, or disable it.",
    "journal": "Show what happened, prove that it is all there, and hand it to others.",
    "store": "Show where grants, parties and keys are kept, and bring that up to date.",
    "doctor": "Find what is wrong, and say what to do about it.",
    "client": "Put Comity into the configuration of an MCP client, and take it out again.",
    "new": "Begin a project of your own: a live server with its tests.",
    "completion": "Print the script that lets a shell complete commands and names.",
    "example": "Run a small tool server on stdin and stdout, to try things with.",
}
"""Every command, with what it is for."""

MODULES: Final = {
    "init": "comity.clients.commands",
    "check": "comity.app.checks.configuration",
    "serve": "comity.app.commands",
    "status": "comity.servers.commands",
    "servers": "comity.servers.commands",
    "tools": "comity.catalog.commands",
    "search": "comity.catalog.commands",
    "call": "comity.catalog.call_command",
    "asks": "comity.approvals.commands",
    "approve": "comity.approvals.commands",
    "deny": "comity.approvals.commands",
    "grants": "comity.policy.commands",
    "keys": "comity.identity.commands",
    "parties": "comity.identity.commands",
    "topic": "comity.topics.commands",
    "turns": "comity.live.commands",
    "models": "comity.inference.commands",
    "state": "comity.live.commands",
    "channels": "comity.live.commands",
    "pushes": "comity.live.commands",
    "webhooks": "comity.events.commands",
    "permissions": "comity.policy.commands",
    "features": "comity.live.commands",
    "journal": "comity.audit.commands",
    "store": "comity.storage.commands",
    "doctor": "comity.app.checks.doctor",
    "client": "comity.clients.commands",
    "new": "comity.sdk.commands",
    "completion": "comity.cli.completion",
    "example": "comity.sdk.example",
}
"""The module that defines each command, as `{command}_command`."""

COMPLETING: Final = "_COMITY_COMPLETE"
"""The variable by which a shell asks click for completions."""


class LazyCommandGroup(click.Group):
    """A group whose commands are known by name before any of them is loaded."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # Loaded only when it runs, so that `comity --help` is quick.
        module = importlib.import_module(MODULES[cmd_name])
        return getattr(module, f"{cmd_name}_command")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = args[0] in COMMANDS or args[0].startswith("-")
        if not known and not ctx.resilient_parsing:
            hint = suggest_name(args[0], COMMANDS) or "`comity --help` lists them."
            raise click.UsageError(f"There is no command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        words = [
            CompletionItem(name, help=about)
            for name, about in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*words, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    package_name="comity", message=f"comity %(version)s (Python {platform.python_version()})"
)
def comity() -> None:
    """One MCP endpoint in front of every tool server."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    try:
        status = comity.main(arguments, prog_name="comity", standalone_mode=False)
        if not sys.stdout.closed:  # `serve --stdio` has closed it behind its client
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return OPERATORS_MISTAKE
    except (Misconfigured, Unavailable) as error:
        # A gateway that writes its log for programs does so to the end.
        is_own = isinstance(error, Misconfigured)
        # Loaded only for an error: a command that succeeds writes no log.
        from comity.telemetry.logging import log_announcement

        log_announcement(str(error), logging.ERROR, is_own=is_own)
        return OPERATORS_MISTAKE if is_own else NOT_REACHABLE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # click ends the program itself in two cases only: for a shell that completes, and for a
        # reader that has gone away.
        if COMPLETING in os.environ:
            raise
        return _on_broken_pipe()
    return status if isinstance(status, int) else 0


def _on_broken_pipe() -> int:
    """What is still buffered would be flushed at exit, and fail there again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return READER_GONE
