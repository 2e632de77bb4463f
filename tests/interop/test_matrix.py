"""Everybody's client at everybody's server: each cell passes, or fails the same way without Comity.

The clients are programs of their own, in the language and the environment of their SDK
(`matrix/clients`, `js/matrix.mjs`); each visits all servers once, and a test looks at one cell of
what came of it. The tables are printed when the last one has been looked at.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.conftest import DIRECT
from tests.interop.matrix import page
from tests.interop.matrix.parties import CLIENTS, Client, Server, servers
from tests.interop.matrix.stage import DOORS, Stage, servers_behind, staged
from tests.interop.matrix.table import is_shown, remarks, tables

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="the matrix goes both ways by itself"),
    # The first of these tests to run may have to install the peers; the first of each client
    # waits until it has visited all servers.
    pytest.mark.timeout(1200),
]

BRIEFLY = ("python1", "python2-modern", "typescript2", "fastmcp-auto")
"""In CI a client of each SDK, two of each era; all of them by `COMITY_MATRIX=all` and elsewhere."""

IS_BRIEF = os.environ.get("CI") == "true" and os.environ.get("COMITY_MATRIX") != "all"
PLAYED = [client for client in CLIENTS if not IS_BRIEF or client.id in BRIEFLY]
PLACES = [
    pytest.param(client, door, server, id=f"{client.id}, {door}, {server.id}")
    for client in PLAYED
    for door in DOORS
    for server in servers_behind(door, client, servers(Path()))
]


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("matrix")) as stage:
        yield stage
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write(f"\n\n{tables(stage.played)}\n\n{remarks(stage.played)}\n")


@pytest.mark.parametrize(("client", "door", "server"), PLACES)
def test_a_client_does_with_a_server_what_it_does_without_comity(
    stage: Stage, client: Client, door: str, server: Server
) -> None:
    (cell,) = [
        cell for cell in stage.play(client) if (cell.door, cell.server.id) == (door, server.id)
    ]
    assert [str(difference) for difference in cell.differences()] == []
    assert cell.outdated() == []


def test_the_page_shows_the_matrix_as_it_was_played(stage: Stage) -> None:
    for client in PLAYED:
        for _ in range(3):
            # A busy machine lets a client's own deadlines pass, with Comity and without it.
            if not is_shown(stage.play(client), page.shown()):
                stage.play_again(client)
        assert is_shown(stage.play(client), page.shown())
    assert IS_BRIEF or page.shown() == tables(stage.played)
