"""`comity servers update`: shows what differs from the lock file, and accepts it."""

import asyncio
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from comity.app.settings import ServerSettings, Settings
from comity.app.settings_reader import ConfigSource
from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_servers
from comity.cli.exit_status import DONE, FAILED, suggest_name
from comity.cli.options import CliCommand, check_option, config_options, current_options, yes_option
from comity.cli.output import build_table, line_text, short_reason, show_document, show_output
from comity.clients.files import write_whole
from comity.config.trust import content_digest, trust_file
from comity.errors import Misconfigured
from comity.servers.packages.lock_file import lock_path, render_lock
from comity.servers.packages.model import (
    NOT_LOCKED,
    EntryDifference,
    LockedPackage,
    LockedServer,
    PackageRequest,
    WrittenEntry,
)
from comity.servers.packages.package_store import user_package_store
from comity.servers.packages.rules import list_entry_differences, read_command, tool_differences
from comity.toolkit.text import count_noun

READABLE_BY_ALL = 0o644
_ACCEPTABLE_STATES = ("accepted", "new", "changed")


@dataclass(slots=True)
class ServerUpdate:
    """The new state of one server, and how it differs from the approved one.

    `after` is None for a server that the configuration has no more.
    """

    id: str
    after: LockedServer | None
    differences: list[EntryDifference] = field(default_factory=list[EntryDifference])
    notes: list[str] = field(default_factory=list[str])


@click.command("update", cls=CliCommand)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_servers)
@check_option("a server differs from comity.lock; change nothing")
@click.option("--no-start", is_flag=True, help="Do not start servers to compare their tools.")
@yes_option
@config_options
def update_command(names: tuple[str, ...], *, check: bool, no_start: bool, yes: bool) -> int:
    """Update comity.lock with commands, packages and tools.

    The command resolves each `npx` and `uvx` package anew, and shows what differs. Then it asks,
    writes comity.lock, starts the servers, and does the same for their tools. From the first
    comity.lock on, a server that differs from it does not start.

    \b
    Examples:
      comity servers update
      comity servers update files
      comity servers update --check --no-start
    """
    config_path = current_options().config
    source = ConfigSource(Path.cwd(), Path.home(), os.environ, config_path, needs_trust=True)
    loaded = source.load()
    config = loaded.files[0]
    # Read once: another content could be in the file since its digest was checked.
    locked = None if loaded.locked is None else dict(loaded.locked)
    if locked is None and names:
        raise Misconfigured(
            f"{lock_path(config)} does not exist yet; run `comity servers update` without names"
        )
    servers = _chosen(loaded.settings, names)
    updates = asyncio.run(_plan(servers, locked or {}, is_check=check))
    if not names:
        updates += _removals(locked or {}, servers)
    if check:
        if not no_start:
            with _started(loaded.settings, updates) as gateway:
                _compare_tools(gateway, updates)
        _show_result(config, updates, is_check=True)
        return FAILED if locked is None or _differs(updates) else DONE
    if locked is None or _differs(updates):
        _ask(updates, config, yes=yes)
        asyncio.run(_install(updates))
        locked = _write(config, locked or {}, updates)
    if not no_start:
        updates += _update_tools(source.load().settings, config, locked, updates, yes=yes)
    _show_result(config, updates)
    return DONE


def _chosen(settings: Settings, names: tuple[str, ...]) -> list[ServerSettings]:
    enabled = [each for each in settings.servers if not each.disabled]
    ids = [each.id for each in enabled]
    for name in names:
        if name not in ids:
            raise Misconfigured(f"there is no server {name!r:.80}. {suggest_name(name, ids)}")
    return [each for each in enabled if not names or each.id in names]


async def _plan(
    servers: Sequence[ServerSettings], locked: Mapping[str, LockedServer], *, is_check: bool
) -> list[ServerUpdate]:
    """Compare the servers with the lock file. A check uses no network."""
    found: list[ServerUpdate] = []
    for server in servers:
        before = locked.get(server.id) or NOT_LOCKED
        update = ServerUpdate(server.id, None)
        package = before.package if is_check else await _resolve(server, update)
        update.after = LockedServer(server.written, package, before.tools)
        update.differences += list_entry_differences(before.entry, server.written)
        update.differences += _package_differences(before.package, package)
        if package is not None:
            update.differences += _file_differences(package)
        found.append(update)
    return found


def _removals(
    locked: Mapping[str, LockedServer], servers: Sequence[ServerSettings]
) -> list[ServerUpdate]:
    gone = sorted(locked.keys() - {each.id for each in servers})
    return [
        ServerUpdate(id, None, list_entry_differences(locked[id].entry, WrittenEntry()))
        for id in gone
    ]


async def _resolve(server: ServerSettings, update: ServerUpdate) -> LockedPackage | None:
    request = _package_request(server, update)
    return None if request is None else await user_package_store().resolve(request)


def _package_request(server: ServerSettings, update: ServerUpdate) -> PackageRequest | None:
    if server.transport != "stdio" or server.packages == "as_written":
        return None
    try:
        return read_command((server.command, *server.args))
    except Misconfigured as problem:
        if server.packages == "store":
            raise
        update.notes.append(f"Its package is not pinned: {problem}.")
        return None


def _package_differences(
    before: LockedPackage | None, after: LockedPackage | None
) -> list[EntryDifference]:
    if before == after:
        return []
    return [EntryDifference("package", str(before or ""), str(after or ""))]


def _file_differences(package: LockedPackage) -> list[EntryDifference]:
    store = user_package_store()
    changes = store.find_changes(package, reads_all=True) if store.has(package) else []
    return [EntryDifference(f"files of {package.name}", "", change) for change in changes[:10]]


async def _install(updates: Sequence[ServerUpdate]) -> None:
    store = user_package_store()
    for each in updates:
        package = None if each.after is None else each.after.package
        if package is None:
            continue
        if store.has(package) and store.find_changes(package, reads_all=True):
            await store.reinstall(package)
        await store.install(package)


def _write(
    config: Path, locked: Mapping[str, LockedServer], updates: Sequence[ServerUpdate]
) -> dict[str, LockedServer]:
    changed = {**locked, **{each.id: each.after for each in updates}}
    kept = {id: each for id, each in changed.items() if each is not None}
    text = render_lock(kept)
    write_whole(lock_path(config), text, READABLE_BY_ALL)
    trust_file(lock_path(config), content_digest(text.encode()))
    return kept


@contextmanager
def _started(settings: Settings, updates: Sequence[ServerUpdate]) -> Generator[ApiClient]:
    """Yield a client of a temporary gateway that has started these servers."""
    # Imported here because a gateway loads slowly, and most of this module needs none.
    from comity.app.processes.local_gateway import temporary_gateway

    ids = {each.id for each in updates if each.after is not None}
    with temporary_gateway(settings, lambda id: id in ids) as gateway:
        yield gateway


def _update_tools(
    settings: Settings,
    config: Path,
    locked: Mapping[str, LockedServer],
    updates: Sequence[ServerUpdate],
    *,
    yes: bool,
) -> list[ServerUpdate]:
    """Start the servers, and accept their tools if the person agrees."""
    found = [ServerUpdate(each.id, locked[each.id]) for each in updates if each.after is not None]
    with _started(settings, found) as gateway:
        _compare_tools(gateway, found)
        if _differs(found):
            _ask(found, config, yes=yes)
            _write(config, locked, found)
            for each in found:
                # The store keeps the whole definitions, from which later differences are shown.
                tools = each.after.tools if each.differences and each.after is not None else None
                if tools:
                    body = {"server": each.id, "tools": tools}
                    gateway.post("definitions", "accept", body=body)
    return found


def _compare_tools(gateway: ApiClient, updates: Sequence[ServerUpdate]) -> None:
    for each in updates:
        if each.after is None:
            continue
        state = gateway.get("servers", each.id)
        if state["state"] == "connected":
            each.after = _compare_definitions(gateway, each, each.after)
        else:
            reason = short_reason(state["reason"])
            each.notes.append(f"It did not start, so its tools were not compared: {reason}")


def _compare_definitions(
    gateway: ApiClient, update: ServerUpdate, locked: LockedServer
) -> LockedServer:
    """Add the differences of the tools. A tool that may deceive its readers stays out."""
    listed = _list_definitions(gateway, update.id)
    good = [each for each in listed if each["state"] in _ACCEPTABLE_STATES]
    update.notes += [
        f"The tool {each['tool']} is {each['state']} and stays out; see `comity tools diff`."
        for each in listed
        if each not in good
    ]
    digests: dict[str, str] = {each["tool"]: each["digest"] for each in good}
    update.differences += tool_differences(locked.tools, digests)
    for each in good:
        if each["state"] == "accepted":
            continue
        for change in gateway.get("definitions", update.id, each["tool"])["changes"]:
            part = f"tool {each['tool']} at {change['at']}"
            before, after = change["before"] or "", change["after"] or ""
            update.differences.append(EntryDifference(part, before, after))
    return replace(locked, tools=digests)


def _list_definitions(gateway: ApiClient, server: str) -> list[Answer]:
    listed: list[Answer] = []
    query = {"server": server, "all": "true"}
    while True:
        page = gateway.get("definitions", **query)
        listed += page["tools"]
        if "next" not in page:
            return listed
        query["cursor"] = page["next"]


def _differs(updates: Sequence[ServerUpdate]) -> bool:
    return any(each.differences for each in updates)


def _ask(updates: Sequence[ServerUpdate], config: Path, *, yes: bool) -> None:
    """Show the differences and ask. A script needs --yes, because no person saw them."""
    _print_differences(updates)
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misconfigured("these differences need a person; run it at a terminal, or add --yes")
    click.confirm(f"Accept this in {lock_path(config)}?", default=False, abort=True, err=True)


def _print_differences(updates: Sequence[ServerUpdate]) -> None:
    if current_options().is_for_programs:
        return
    rows = [
        (update.id, each.part, each.before or "(nothing)", each.after or "(nothing)")
        for update in updates
        for each in update.differences
    ]
    if rows:
        show_output(build_table(("SERVER", "DIFFERENCE", "APPROVED", "NOW"), rows))
    for update in updates:
        show_output(*(line_text(f"{update.id}: {note}", "yellow") for note in update.notes))


def _show_result(config: Path, updates: Sequence[ServerUpdate], *, is_check: bool = False) -> None:
    changed = sorted({each.id for each in updates if each.differences})

    def print_text() -> None:
        told = f"Updated {lock_path(config)}: {', '.join(changed)}." if changed else ""
        if is_check and changed:
            _print_differences(updates)
            told = f"{count_noun(len(changed), 'server')} differ from {lock_path(config)}."
        show_output(line_text(told or f"Nothing differs from {lock_path(config)}."))

    views = [_update_view(id, [each for each in updates if each.id == id]) for id in changed]
    show_document({"file": str(lock_path(config)), "servers": views}, print_text, changed)


def _update_view(id: str, updates: Sequence[ServerUpdate]) -> dict[str, Any]:
    """Return the differences of one server, first of its entry and then of its tools."""
    return {
        "id": id,
        "differences": [
            {"part": each.part, "before": each.before, "after": each.after}
            for update in updates
            for each in update.differences
        ],
        "notes": [note for update in updates for note in update.notes],
    }
