"""The `comity` program: the table of commands, and the exit status of each failure.

A command's module is imported when that command runs. Only a bug of ours ends in a traceback.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem

from comity.cli.exit_status import (
    INTERRUPTED,
    NOT_REACHABLE,
    READER_GONE,
    USAGE_ERROR,
    suggest_name,
)
from comity.cli.options import VERSION_MESSAGE, CliGroup, gateway_options
from comity.errors import Misconfigured, Unavailable

COMMAND_SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Start": {
        "init": "Create a configuration from your MCP clients.",
        "demo": "Try Comity with sample servers and agents.",
        "serve": "Start the gateway.",
        "console": "Open the console in a browser.",
        "status": "Show the health of a gateway.",
        "doctor": "Diagnose machine, configuration, servers and clients.",
        "config": "Check and show the configuration.",
        "context": "Manage named gateways.",
        "clients": "Configure MCP clients to use Comity.",
    },
    "Servers and tools": {
        "servers": "Manage servers and their permissions, features and state.",
        "tools": "List, search, call and review tools.",
        "call": "Call a tool and print its result.",
        "views": "List, show and suggest views of tools.",
    },
    "Access and approvals": {
        "principals": "Manage agents, people and servers.",
        "groups": "List groups of principals.",
        "keys": "Manage API keys.",
        "sessions": "Manage the browsers that are signed in.",
        "accounts": "Connect your accounts at remote servers.",
        "grants": "Manage and explain grants.",
        "approvals": "List and answer approval requests.",
        "approve": "Approve an approval request.",
        "deny": "Deny an approval request.",
        "notifiers": "List and test notifiers.",
        "secrets": "Manage the keys of stored credentials.",
    },
    "Records": {
        "audit": "Search, verify and export the audit log.",
        "webhooks": "Manage webhook subscriptions.",
        "db": "Show and migrate the database.",
        "nodes": "Show the nodes of a cluster.",
    },
    "Collaboration and models": {
        "topics": "List and join topics, and set capabilities.",
        "chat": "Talk to a model, and show past turns.",
        "models": "List and test models, and show their usage.",
        "channels": "Manage the channels of live servers.",
        "pushes": "List and retry pushed events.",
    },
    "Build": {
        "dev": "Build and try servers of your own.",
        "completion": "Print the completion script of a shell.",
        "help": "Show the help of a command.",
        "version": "Print the version.",
    },
}
"""Every command under its heading, with its summary."""

COMMANDS: Final = {
    name: about for section in COMMAND_SECTIONS.values() for name, about in section.items()
}

MODULES: Final = {
    "init": "comity.clients.commands",
    "demo": "comity.app.demo.commands",
    "serve": "comity.app.commands",
    "console": "comity.identity.login.commands",
    "status": "comity.servers.commands",
    "doctor": "comity.app.checks.doctor",
    "config": "comity.config.commands",
    "context": "comity.cli.context_commands",
    "clients": "comity.clients.commands",
    "servers": "comity.servers.commands",
    "tools": "comity.catalog.commands",
    "call": "comity.catalog.call_command",
    "views": "comity.views.commands",
    "principals": "comity.identity.commands",
    "groups": "comity.identity.commands",
    "keys": "comity.identity.commands",
    "sessions": "comity.identity.login.commands",
    "accounts": "comity.accounts.commands",
    "grants": "comity.policy.commands",
    "approvals": "comity.approvals.commands",
    "approve": "comity.approvals.commands",
    "deny": "comity.approvals.commands",
    "notifiers": "comity.approvals.notifiers.commands",
    "secrets": "comity.secrets.commands",
    "audit": "comity.audit.commands",
    "webhooks": "comity.events.commands",
    "db": "comity.storage.commands",
    "nodes": "comity.servers.commands",
    "topics": "comity.topics.commands",
    "chat": "comity.live.commands",
    "models": "comity.inference.commands",
    "channels": "comity.live.commands",
    "pushes": "comity.live.commands",
    "dev": "comity.sdk.commands",
    "completion": "comity.cli.completion",
    "help": "comity.cli.help_commands",
    "version": "comity.cli.help_commands",
}
"""The module that defines each command, as `{command}_command`."""

COMPLETING: Final = "_COMITY_COMPLETE"
"""The variable by which a shell asks click for completions."""


class RootGroup(CliGroup):
    """The program itself. It knows the summaries of its commands before it loads any of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = args[0] in COMMANDS or args[0].startswith("-")
        if not known and not ctx.resilient_parsing:
            hint = suggest_name(args[0], COMMANDS) or "`comity --help` lists them."
            raise click.UsageError(f"There is no command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in COMMAND_SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        words = [
            CompletionItem(name, help=about)
            for name, about in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*words, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=RootGroup,
    lazy_commands={name: f"{module}:{name}_command" for name, module in MODULES.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="comity", message=VERSION_MESSAGE)
@gateway_options
def comity() -> None:
    """Run and manage Comity, one MCP endpoint for all your servers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    try:
        status = comity.main(arguments, prog_name="comity", standalone_mode=False)
        if not sys.stdout.closed:  # `serve --stdio` has closed it behind its client
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return USAGE_ERROR
    except (Misconfigured, Unavailable) as error:
        # A gateway that writes its log for programs does so to the end.
        is_own = isinstance(error, Misconfigured)
        # Loaded only for an error: a command that succeeds writes no log.
        from comity.telemetry.logging import log_announcement

        log_announcement(str(error), logging.ERROR, is_own=is_own)
        if isinstance(error, Misconfigured):
            return error.exit_status or USAGE_ERROR
        return NOT_REACHABLE
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
    """Redirect standard output, because the flush at exit would fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return READER_GONE
