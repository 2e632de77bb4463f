"""`comity accounts`: connect, list and disconnect accounts at remote servers."""

import webbrowser

import click
from rich.console import RenderableType

from comity.cli.api_client import Answer
from comity.cli.options import DefaultListGroup, gateway_options
from comity.cli.output import (
    build_table,
    describe_age,
    line_text,
    show_document,
    show_hint,
    show_output,
)
from comity.cli.target import connect_gateway
from comity.errors import Misconfigured


@click.group("accounts", cls=DefaultListGroup)
def accounts_command() -> None:
    """Connect your accounts at remote servers.

    \b
    Examples:
      comity accounts
      comity accounts connect github
      comity accounts disconnect github
    """


@accounts_command.command("list")
@gateway_options
def list_accounts() -> None:
    """List the accounts, and the servers that demand one.

    \b
    Examples:
      comity accounts list
      comity accounts list -o json
    """
    found = connect_gateway().get("accounts")

    def print_table() -> None:
        if found["accounts"]:
            show_output(_account_table(found["accounts"]))
        else:
            show_output(line_text("No account is connected."))
        for each in found["servers"]:
            if not each["connected"]:
                show_hint(f"Run `comity accounts connect {each['server']}` to sign in there.")

    show_document(found, print_table, [each["id"] for each in found["accounts"]])


def _account_table(accounts: list[Answer]) -> RenderableType:
    rows = [
        (
            each["server"],
            each["owner"] or "shared",
            each["state"].replace("_", " "),
            describe_age(each["connected_at"]),
            (each["expires_at"] or "")[:16].replace("T", " "),
            " ".join(each["scopes"]),
            each["issuer"],
        )
        for each in accounts
    ]
    columns = ("SERVER", "OWNER", "STATE", "AGE", "TOKEN UNTIL", "SCOPES", "ISSUER")
    return build_table(columns, rows, extra=("ISSUER", "SCOPES", "TOKEN UNTIL"))


@accounts_command.command("connect")
@click.argument("server")
@click.option("--no-open", is_flag=True, help="Print the link without opening a browser.")
@gateway_options
def connect_account(server: str, *, no_open: bool) -> None:
    """Sign in to a server that demands it.

    The command opens a page of the gateway, which leads to the provider of the server.

    \b
    Examples:
      comity accounts connect github
      comity accounts connect github --no-open
    """
    gateway = connect_gateway()
    known = {each["server"]: each for each in gateway.get("accounts")["servers"]}
    if server not in known:
        raise Misconfigured(f"server {server!r} demands no sign-in; see `comity accounts`")
    path = known[server]["path"]
    if gateway.get("session")["mode"] == "local":
        # The link also signs the operator of this machine in to Comity.
        path = gateway.post("login-links", body={"next": path})["path"]
    url = f"{gateway.url}{path}"

    def print_link() -> None:
        show_output(line_text(url))
        show_hint("Open the link in a browser to sign in. It works for ten minutes.")

    show_document({"server": server, "url": url}, print_link, [url])
    if not no_open:
        webbrowser.open(url)


@accounts_command.command("disconnect")
@click.argument("server")
@click.option("--owner", default="", help="The person whose account ends. [default: you]")
@gateway_options
def disconnect_account(server: str, owner: str) -> None:
    """End an account, and revoke its tokens.

    \b
    Examples:
      comity accounts disconnect github
      comity accounts disconnect github --owner person:ana@example.org
    """
    gateway = connect_gateway()
    whose = owner or gateway.get("session")["principal"]
    found = [
        each
        for each in gateway.get("accounts")["accounts"]
        if each["server"] == server and each["owner"] in (whose, "" if not owner else whose)
    ]
    if not found:
        raise Misconfigured(f"there is no account of {whose} at {server!r}")
    ended = gateway.post("accounts", found[0]["id"], "disconnect")

    def print_end() -> None:
        show_output(line_text(f"Ended the account at {ended['server']}.", "green"))
        if not ended["revoked"]:
            show_hint("The provider did not confirm that the tokens ended. Check it there.")

    show_document(ended, print_end, [ended["id"]])
