"""With governance on, clients do with servers what they do without: some cells of the matrix.

Credentials are required, every call is judged and its arguments are looked at; the clients, which
show no key, come through a proxy that shows one for them.
"""

from collections.abc import Iterator

import pytest

from tests.interop.conftest import DIRECT
from tests.interop.matrix.parties import CLIENTS, Client
from tests.interop.matrix.stage import DOORS, Stage, staged_governed

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="this goes both ways by itself"),
    pytest.mark.timeout(900),
]

SERVERS = ("python2-http", "python1-stdio")
WITH = [client for client in CLIENTS if client.id in ("python2-modern", "typescript1")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged_governed(tmp_path_factory.mktemp("governed"), SERVERS) as stage:
        yield stage


@pytest.mark.parametrize("client", WITH, ids=[client.id for client in WITH])
def test_a_governed_server_does_for_its_party_what_it_does_alone(
    stage: Stage, client: Client
) -> None:
    cells = stage.play(client)
    assert {(cell.door, cell.server.id) for cell in cells} == {
        (door, server) for door in stage.doors for server in SERVERS
    }
    assert set(stage.doors) < set(DOORS)
    for cell in cells:
        told = [str(difference) for difference in cell.differences()]
        assert told == [], f"{cell.door}, {cell.server.id}"
