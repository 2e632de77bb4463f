"""Live servers at /api: features, pushes and state, for those who administer them."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.inference.messages import to_text_content
from comity.live.api import FeaturesApi, PushesApi
from comity.live.features import LivePolicy
from comity.live.host import LiveHost
from comity.live.pushes.model import PUSH_PAGE, Push, PushRoute, PushTarget, StoredPush
from comity.live.state.model import NewCheckpoint, StateForm, StateKey
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, LOCAL, Actor
from comity.mcp.mcpl import ScopeBounds
from comity.policy.grants import Effect, Grant
from comity.toolkit.jobs import JobOutcome, JobState, WorkClaim
from tests.conformance.governed import ADMIN, ADMINISTERS, Governed, governed
from tests.live.live_link import DECLARED, LinkRoom
from tests.support.api_calls import call_route
from tests.support.inline_store import inline_records


class Written:
    """Remembers what was decided."""

    def __init__(self) -> None:
        self.grants: list[tuple[str, str, str, Effect | None]] = []

    async def put(self, actor: Actor, grant: Grant) -> Grant:
        self.grants.append((grant.subject, grant.verb, grant.target, grant.effect))
        return grant

    async def revoke(self, actor: Actor, subject: str, verb: str, target: str) -> bool:
        self.grants.append((subject, verb, target, None))
        return True


def opened() -> tuple[FeaturesApi, Written]:
    scopes = {"files": ScopeBounds(("/p/**",), ("**/.env",))}
    policy = LivePolicy(enabled=("files",), scopes=scopes)
    hosting, written = LiveHost(lambda _: policy), Written()
    for name in ("one", "two"):
        hosting.register(LinkRoom(name, modern=name == "two"), DECLARED)
    return FeaturesApi(hosting, written), written


async def ask(api: FeaturesApi, method: str = "GET", *place: str, **body: Any) -> Any:
    given = {"server": body.pop("only")} if "only" in body else body
    return await call_route(api.routes, method, "/".join(("/api/features", *place)), given, LOCAL)


async def test_each_live_server_is_shown_with_each_of_its_sets() -> None:
    api, _ = opened()
    found = (await ask(api))["servers"]
    assert [(each["server"], each["protocol"]) for each in found] == [
        ("one", "2025-11-25"),
        ("two", "2026-07-28"),
    ]
    (files, push, _) = found[0]["features"]
    assert (files["feature"], files["enabled"], files["scoped"]) == ("files", True, True)
    assert (files["whitelist"], files["blacklist"]) == (["/p/**"], ["**/.env"])
    assert (push["enabled"], push["by"], "whitelist" in push) == (False, "default", False)
    assert [each["server"] for each in (await ask(api, only="two"))["servers"]] == ["two"]


async def test_a_decision_is_a_grant_to_the_server() -> None:
    api, written = opened()
    for deed in ("enable", "disable", "reset"):
        shown = await ask(api, "POST", deed, server="one", feature="memory.*")
        assert [each["server"] for each in shown["servers"]] == ["one"]
    assert [each[3] for each in written.grants] == [Effect.ALLOW, Effect.DENY, None]
    assert {each[:3] for each in written.grants} == {("server:one", "feature/enable", "memory.*")}
    # It may be decided before the server is there.
    assert await ask(api, "POST", "enable", server="later", feature="x") == {"servers": []}


@pytest.mark.parametrize(
    ("method", "place", "body", "fault"),
    [
        ("GET", ("nowhere",), {}, NOTHING_HERE),
        ("POST", ("enable",), {"server": "one"}, INVALID_PARAMS),
        ("POST", ("enable",), {"server": "", "feature": "x"}, INVALID_PARAMS),
        ("POST", ("enable",), {"server": "one", "feature": "x" * 200}, INVALID_PARAMS),
        ("DELETE", (), {}, NOTHING_HERE),
    ],
)
async def test_what_makes_no_sense_is_refused(
    method: str, place: tuple[str, ...], body: dict[str, Any], fault: object
) -> None:
    api, written = opened()
    with pytest.raises(MalformedMessage) as refused:
        await ask(api, method, *place, **body)
    assert refused.value.fault is fault
    assert written.grants == []


NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
HELD = WorkClaim("h", NOW)
KEPT = StoredPush(
    Push("ci", "e", NOW, to_text_content("secret words"), "ci.builds", {"token": "hidden"}),
    PushRoute(PushTarget.TURN, "", "ops"),
    NOW,
    NOW,
)


class Desk:
    def __init__(self) -> None:
        self.records = inline_records().pushes
        self.stirs = 0
        self.api = PushesApi(self.records, lambda: NOW, self.stir)

    def stir(self) -> None:
        self.stirs += 1

    async def has(self, count: int, server: str = "ci") -> None:
        for each in range(count):
            push = replace(KEPT.push, id=f"e{each}", server=server)
            await self.records.add(replace(KEPT, push=push), HELD, 1_000)

    async def ask(self, method: str = "GET", *place: str, **query: str) -> dict[str, Any]:
        path = "/".join(("/api/pushes", *place))
        return await call_route(self.api.routes, method, path, query, LOCAL)


async def test_the_last_pushes_are_shown_without_what_was_in_them() -> None:
    desk = Desk()
    await desk.has(2)
    found = await desk.ask()
    assert [each["event"] for each in found["pushes"]] == ["e1", "e0"]
    assert (found["waiting"], found["done"], found["failed"]) == (2, 0, 0)
    first = found["pushes"][0]
    assert (first["server"], first["to"], first["conversation"]) == ("ci", "turn", "ops")
    assert "secret words" not in str(found)
    assert "hidden" not in str(found)


async def test_many_pushes_are_shown_page_by_page_and_of_one_server() -> None:
    desk = Desk()
    await desk.has(PUSH_PAGE + 5)
    await desk.has(1, "cd")
    first = await desk.ask(server="ci")
    assert len(first["pushes"]) == PUSH_PAGE
    second = await desk.ask(server="ci", cursor=first["next"])
    assert len(second["pushes"]) == 5
    assert "next" not in second
    assert [each["server"] for each in (await desk.ask(server="cd"))["pushes"]] == ["cd"]


async def test_one_that_failed_is_done_again_where_somebody_says_so() -> None:
    desk = Desk()
    await desk.has(1)
    with pytest.raises(MalformedMessage):
        await desk.ask("POST", "1", "retry")
    (job,) = await desk.records.jobs.claim(HELD, NOW, 1)
    await desk.records.settle(job, JobOutcome(JobState.FAILED, NOW))
    assert (await desk.ask("POST", "1", "retry"))["state"] == "waiting"
    assert desk.stirs == 1


@pytest.mark.parametrize(
    ("method", "place", "query"),
    [
        ("GET", ("1",), {}),
        ("DELETE", (), {}),
        ("POST", ("x", "retry"), {}),
        ("POST", ("9" * 40, "retry"), {}),
        ("GET", (), {"cursor": "-1"}),
        ("GET", (), {"cursor": "٣"}),
    ],
)
async def test_whatever_else_is_asked_for_is_not_there(
    method: str, place: tuple[str, ...], query: dict[str, str]
) -> None:
    with pytest.raises(MalformedMessage):
        await Desk().ask(method, *place, **query)


SAVED_AT = datetime(2026, 7, 28, tzinfo=UTC)
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
        for place in (StateKey("files", "notes"), StateKey("files", ""), StateKey("mail", "box")):
            root = NewCheckpoint("root", SAVED_AT, None, None, StateForm.DATA, 0, b'{"secret":1}')
            first = await states.add(place, root)
            assert first is not None
            assert (
                await states.add(place, NewCheckpoint("next", SAVED_AT, "root", first.number))
                is not None
            )
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
        ("delete", {}),
    )
    for party in (READER, STRANGER):
        for order, body in orders:
            status, told = await asked(scene, party, f"/files/notes/{order}", body)
            assert status == 400
            assert "admin/write" in told["error"]["message"]
    status, told = await asked(scene, KEEPER, "/mail/box/delete", {})
    assert (status, "admin/write on mail/*" in told["error"]["message"]) == (400, True)
    assert (await asked(scene, KEEPER, "/files/notes/delete", {}))[1]["dropped"] == 2
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
