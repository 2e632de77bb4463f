"""State at /api/state: for whoever administers its server, and for nobody else."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest

from comity.ports.states import New, Place
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE, Effect, Grant
from comity.wire.state_trees import Form
from tests.conformance.governed import ADMIN, ADMINISTERS, Governed, governed

NOW = datetime(2026, 7, 28, tzinfo=UTC)
READER, KEEPER, STRANGER = "person:reader", "person:keeper", "agent:ci"
OF_FILES = (
    Grant(READER, ADMIN_READ, "files/*", Effect.ALLOW),
    *(Grant(KEEPER, verb, "files/*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE)),
    Grant(STRANGER, "tools/call", "*", Effect.ALLOW),
)
HERE = "/api/state"


@pytest.fixture
async def scene() -> AsyncGenerator[Governed]:
    async with governed(grants=(*ADMINISTERS, *OF_FILES)) as scene:
        states = scene.visitor.parts.snapshot.records.states
        for place in (Place("files", "notes"), Place("files", ""), Place("mail", "box")):
            root = New("root", NOW, None, None, Form.DATA, 0, b'{"secret":1}')
            first = await states.add(place, root)
            assert first is not None
            assert await states.add(place, New("next", NOW, "root", first.number)) is not None
        yield scene


async def asked(scene: Governed, party: str, path: str, body: Any = None) -> tuple[int, Any]:
    return await scene.guest(party).http("GET" if body is None else "POST", HERE + path, body)


async def test_each_sees_the_state_of_servers_that_it_administers(scene: Governed) -> None:
    expected = {
        ADMIN: ["files", "files", "mail"],
        READER: ["files", "files"],
        KEEPER: ["files", "files"],
        STRANGER: [],
    }
    for party, servers in expected.items():
        status, told = await asked(scene, party, "")
        assert (status, [each["server"] for each in told["state"]]) == (200, servers)


async def test_reading_needs_admin_read_over_the_server(scene: Governed) -> None:
    for path in ("/files/notes", "/files/*", "/files/notes/root", "/mail/box", "/mail/box/root"):
        for party in (ADMIN, READER, KEEPER, STRANGER):
            status, told = await asked(scene, party, path)
            may = party == ADMIN or (party != STRANGER and path.startswith("/files"))
            assert status == (200 if may else 400), (path, party, told)
            assert may or "secret" not in str(told)
    _, told = await asked(scene, READER, "/files/notes/root")
    assert told["data"] == {"secret": 1}
    _, told = await asked(scene, READER, "/files/*")
    assert (told["feature_set"], told["head"], told["can_roll_back"]) == (None, "next", False)
    assert [each["holds"] for each in told["checkpoints"]] == ["data", "reference"]


async def test_changing_needs_admin_write_over_the_server(scene: Governed) -> None:
    orders: tuple[tuple[str, dict[str, str]], ...] = (
        ("rollback", {"checkpoint": "root"}),
        ("forget", {}),
    )
    for party in (READER, STRANGER):
        for order, body in orders:
            status, told = await asked(scene, party, f"/files/notes/{order}", body)
            assert status == 400
            assert "admin/write" in told["error"]["message"]
    status, told = await asked(scene, KEEPER, "/mail/box/forget", {})
    assert (status, "admin/write on mail/*" in told["error"]["message"]) == (400, True)
    assert (await asked(scene, KEEPER, "/files/notes/forget", {}))[1]["dropped"] == 2
    assert len((await asked(scene, ADMIN, ""))[1]["state"]) == 2


async def test_a_server_that_is_no_live_one_is_not_rolled_back(scene: Governed) -> None:
    status, told = await asked(scene, KEEPER, "/files/notes/rollback", {"checkpoint": "root"})
    assert (status, "has no state" in told["error"]["message"]) == (503, True)
    assert (await asked(scene, KEEPER, "/files/notes"))[1]["head"] == "next"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/files/nothing", None, 404),
        ("/files/notes/nothing", None, 404),
        ("/files", None, 404),
        ("/files/notes/root/more", None, 404),
        ("/files/notes/undo", {}, 404),
        ("/files/notes/rollback", {}, 400),
        ("/files/notes/rollback", {"checkpoint": 7}, 400),
    ],
)
async def test_what_is_not_there_is_told(
    scene: Governed, path: str, body: Any, status: int
) -> None:
    assert (await asked(scene, ADMIN, path, body))[0] == status


async def test_a_name_that_begins_like_it_is_for_operators(scene: Governed) -> None:
    """What lets more in at /api/state lets nobody in beside it."""
    for path in ("s", "../grants", "/../grants"):
        status, _ = await asked(scene, STRANGER, path)
        assert status in (400, 403, 404)
    status, _ = await scene.guest(STRANGER).http("GET", "/api/status")
    assert status == 403
