"""Asks a person, once, for the permissions of the servers that a command adds."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import click

from comity.cli.options import current_options
from comity.cli.output import line_text, show_hint, show_output
from comity.clients.permission_proposals import (
    AccessProposal,
    ProposalContext,
    propose_permissions,
)
from comity.clients.server_import import ImportedServer


@dataclass(frozen=True, slots=True)
class PermissionAnswer:
    """The proposals for some servers by id, and whether a person granted them."""

    proposals: Mapping[str, AccessProposal]
    is_granted: bool

    def applied_to(self, id: str, server: ImportedServer) -> ImportedServer:
        """Return a server with what was granted, and with the notes of its proposal."""
        proposal = self.proposals[id]
        entry = proposal.applied_to(server.entry) if self.is_granted else server.entry
        return replace(server, entry=entry, notes=[*server.notes, *proposal.notes])

    def make_folders(self) -> None:
        """Make the folders that were granted and do not exist."""
        for proposal in self.proposals.values() if self.is_granted else ():
            proposal.make_folders()

    def show_refused(self) -> None:
        """Say what does not work without the permissions, and how to grant each of them."""
        refused = {id: each for id, each in self.proposals.items() if not each.is_empty}
        if self.is_granted or not refused:
            return
        show_output("", line_text("Not granted, so these servers cannot do all of their work:"))
        for id, proposal in refused.items():
            show_output(line_text(f"{id} may not {', '.join(proposal.describe())}:", "yellow"))
            for command in proposal.commands(id):
                show_output(line_text(command))
            if proposal.runs_unconfined:
                show_output(line_text('write sandbox = "none" into its entry'))
        show_hint("The commands need a running gateway. The server restarts with what they grant.")


def ask_permissions(
    servers: Mapping[str, ImportedServer], context: ProposalContext, *, yes: bool
) -> PermissionAnswer:
    """Propose permissions for servers by their ids, and ask. Without a terminal nothing is granted.

    A script grants with --yes, because no person reads the question there.
    """
    proposals = {id: propose_permissions(each.entry, context) for id, each in servers.items()}
    needed = {id: each for id, each in proposals.items() if not each.is_empty}
    if yes or not needed:
        return PermissionAnswer(proposals, yes)
    is_asked = sys.stdin.isatty() and sys.stdout.isatty() and not current_options().is_for_programs
    return PermissionAnswer(proposals, is_asked and _ask(needed))


def _ask(proposals: Mapping[str, AccessProposal]) -> bool:
    show_output(line_text("Comity confines servers. To do their work, these need:"), "")
    for id, proposal in proposals.items():
        for line in proposal.describe():
            show_output(line_text(f"{id}: {line}"))
    show_output("")
    return click.confirm("Grant all of this?", default=False, err=True)
