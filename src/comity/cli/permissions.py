"""`comity permissions`: what each server needs to do its work, and what it was given of that."""

import click

from comity.cli.asking import Answer, Gateway
from comity.cli.completing import complete_servers
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, table
from comity.rules.documents import Written

STYLES = {"approved": "green", "denied": "red", "deferred": "yellow"}


@click.group("permissions", cls=Listing)
def command() -> None:
    """Show what servers need to do their work; approve it, or deny it."""


@command.command("list")
@click.option(
    "--server", metavar="NAME", shell_complete=complete_servers, help="Only of this server."
)
@url_option
@json_option
def list_permissions(server: str | None, url: str, *, as_json: bool) -> int:
    """List every permission that a server needs, and how it stands; the same as `comity
    permissions`.

    The exit status is 1 if one of them waits for a decision.
    """
    query = {} if server is None else {"server": server}
    found = Gateway(url).get("permissions", **query)
    needs: list[Answer] = found["permissions"]
    if as_json:
        show_json(found)
    elif needs:
        _show(needs)
    else:
        show(plain("No server has said that it needs a permission."))
    waits = any(each["decision"] == "deferred" for each in needs)
    return SOMETHING_WRONG if waits else FINE


def _show(needs: list[Answer]) -> None:
    rows = [
        (
            each["server"],
            each["permission"],
            each["risk"],
            plain(each["decision"], STYLES.get(each["decision"], "")),
            each["by"],
            (each["expires_at"] or "")[:16],
            each["because"],
        )
        for each in needs
    ]
    columns = ("SERVER", "PERMISSION", "RISK", "DECISION", "BY", "UNTIL", "BECAUSE")
    show(table(columns, rows))


def _order(deed: str, told: str) -> None:
    """Make the command for one decision."""

    @command.command(deed, help=told)
    @click.argument("server", shell_complete=complete_servers)
    @click.argument("permission")
    @click.option("--expires", metavar="TIME", help="How long it holds, as 8h or 30d; for good.")
    @click.option("--because", metavar="TEXT", default="", help="Why; it is kept with it.")
    @url_option
    @json_option
    def order(
        server: str, permission: str, expires: str | None, because: str, url: str, *, as_json: bool
    ) -> None:
        body: dict[str, object] = {
            "server": server,
            "permission": permission,
            "justification": because,
        }
        if expires is not None:
            length = Written(expires, "--expires").duration()
            body["expires_in_seconds"] = max(1, int(length.total_seconds()))
        found = Gateway(url).post("permissions", deed, body=body)
        if as_json:
            show_json(found)
        elif found["permissions"]:
            _show(found["permissions"])
        else:
            show(plain(f"Noted; {server} has not said that it needs {permission}."))


_order("approve", "Give the server SERVER the permission PERMISSION.")
_order("deny", "Deny the server SERVER the permission PERMISSION.")
_order("forget", "Forget what was decided here of SERVER's PERMISSION; its policy decides again.")
