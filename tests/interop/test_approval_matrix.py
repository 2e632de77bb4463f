"""A person's yes is enforced for any client: every client, through all that may happen meanwhile.

The dangerous tool of each cell writes a line whenever it runs. It runs exactly once, or never, as
it should; and the journal, read from the store when all is over, tells the same.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from comity.audit.events import AuditResult, AuditType
from tests.interop.approving.callers import KINDS, Caller, Drivers
from tests.interop.approving.stage import Gateway, Person, governing
from tests.interop.approving.stories import STORIES, Cell, Scene, expired, killed, play
from tests.interop.conftest import DIRECT

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="no server asks a person by itself"),
    pytest.mark.timeout(600),
]

RUNS = {"approved": 1, "declined": 0, "expired": 0, "left": 1, "drifted": 0, "killed": 1}
"""How often the tool of each story has run when it is told."""

ENDS = {"approved": "ok", "declined": "declined", "killed": "ok"}
"""What every client hears in the end, where all hear the same."""

CELLS = [(kind.id, story) for kind in KINDS for story in RUNS]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Cell]:
    played = _played({(kind.id, story) for kind in KINDS for story in RUNS}, tmp_path_factory)
    for _ in range(2):
        # Clients, asks and holds have their deadlines, and a busy machine lets them pass.
        late = {name for name, cell in played.items() if _has_come_to_nothing(cell)}
        if late:
            played |= _played(late, tmp_path_factory)
    return played


def _has_come_to_nothing(cell: Cell) -> bool:
    """Whether a story was not told to its end; one that ended badly is never told again."""
    is_unfinished = not cell.said or cell.said[-1]["kind"] != ENDS.get(cell.story)
    return cell.runs <= RUNS[cell.story] and (
        cell.failure is not None
        or cell.runs < RUNS[cell.story]
        or (cell.story in ENDS and is_unfinished)
    )


def _played(
    names: set[tuple[str, str]], folders: pytest.TempPathFactory
) -> dict[tuple[str, str], Cell]:
    folder = folders.mktemp("approvals")
    for name in ("main", "brief", "mortal"):
        (folder / name).mkdir()
    cells = {
        (kind.id, story): Cell(kind, story)
        for kind in KINDS
        for story in RUNS
        if (kind.id, story) in names
    }
    return asyncio.run(_play(cells, folder))


async def _play(cells: dict[tuple[str, str], Cell], folder: Path) -> dict[tuple[str, str], Cell]:
    drivers = Drivers()
    callers = {kind.id: kind.make(drivers) for kind in KINDS}
    of = {
        "main": [cell for cell in cells.values() if cell.story in STORIES],
        "brief": [cell for cell in cells.values() if cell.story == "expired"],
        "mortal": [cell for cell in cells.values() if cell.story == "killed"],
    }
    terms = {
        "main": {"client_wait": "3s", "request_ttl": "3m"},
        "brief": {"client_wait": "2s", "request_ttl": "10s"},
        "mortal": {"client_wait": "3s", "request_ttl": "3m"},
    }
    gateways: dict[str, Gateway] = {}
    for name, here in of.items():
        # One after the other: a store is made by whoever opens it first.
        gateways[name] = Gateway(folder / name, [cell.tool for cell in here], terms[name])
        await gateways[name].settle()
    try:
        async with AsyncExitStack() as stack:
            opening = (stack.enter_async_context(governing(each)) for each in gateways.values())
            main, brief, mortal = await asyncio.gather(*opening)
            await asyncio.gather(
                _tell_main(of["main"], main, callers, drivers),
                _tell_brief(of["brief"], brief, callers),
                _tell_mortal(of["mortal"], mortal, callers),
            )
    finally:
        await drivers.kill()
    for name, gateway in gateways.items():
        events = await gateway.journal()
        for cell in of[name]:
            cell.runs = gateway.runs(cell.tool)
            cell.events = [event for event in events if event.tool == cell.tool]
    return cells


async def _tell_main(
    cells: list[Cell], person: Person, callers: dict[str, Caller], drivers: Drivers
) -> None:
    async def tell(cell: Cell) -> None:
        # Whoever goes takes all with it that it had begun.
        is_left = cell.story == "left"
        caller = cell.kind.make(drivers) if is_left else callers[cell.kind.id]
        scene = Scene(cell, person, caller)
        await play(scene, STORIES[cell.story](scene))
        if is_left:
            await caller.leave()

    await asyncio.gather(*map(tell, cells))


async def _tell_brief(cells: list[Cell], person: Person, callers: dict[str, Caller]) -> None:
    scenes = [Scene(cell, person, callers[cell.kind.id]) for cell in cells]
    await asyncio.gather(*(play(scene, expired(scene)) for scene in scenes))


async def _tell_mortal(cells: list[Cell], person: Person, callers: dict[str, Caller]) -> None:
    is_back = asyncio.Event()
    scenes = [Scene(cell, person, callers[cell.kind.id]) for cell in cells]
    waiting = [asyncio.Event() for _ in scenes]
    told = [
        asyncio.create_task(play(scene, killed(scene, waits, is_back)))
        for scene, waits in zip(scenes, waiting, strict=True)
    ]
    all_wait = asyncio.gather(*(waits.wait() for waits in waiting))
    await asyncio.wait([all_wait, *told], return_when=asyncio.FIRST_COMPLETED)
    all_wait.cancel()
    gateway = person.gateway
    await asyncio.to_thread(gateway.kill)
    gateway.start()
    await gateway.ready()
    is_back.set()
    await asyncio.gather(*told)


@pytest.mark.requirement("MGP-4.4-dangerous", "MCP-5.1-hitl")
@pytest.mark.parametrize(("kind", "story"), CELLS, ids=["-".join(cell) for cell in CELLS])
def test_a_dangerous_call_runs_once_or_never_and_the_journal_tells_it(
    cells: dict[tuple[str, str], Cell], kind: str, story: str
) -> None:
    cell = cells[kind, story]
    if cell.failure is not None:
        raise cell.failure
    told = Counter(event.type for event in cell.events)
    assert cell.runs == RUNS[story], (cell.said, told)
    if story in ENDS:
        assert cell.said[-1]["kind"] == ENDS[story], cell.said
    elif cell.said:
        assert "ok" not in [said["kind"] for said in cell.said], cell.said
    executed = [event for event in cell.events if event.type == AuditType.TOOL_EXECUTED]
    assert [event.result for event in executed] == [AuditResult.SUCCESS] * RUNS[story], told
    # Whoever goes amid its turn gives back what it was given.
    assert told[AuditType.APPROVAL_CONSUMED] - told[AuditType.APPROVAL_RELEASED] == RUNS[story], (
        told
    )
    assert told[AuditType.APPROVAL_REQUESTED] >= 1
    _look_at_the_story(cell)


def _look_at_the_story(cell: Cell) -> None:
    answers = [event for event in cell.events if event.type == AuditType.APPROVAL_ANSWERED]
    said = [
        event.details.get("verdict") for event in answers if event.result == AuditResult.SUCCESS
    ]
    ends = [
        event.details.get("state")
        for event in cell.events
        if event.type == AuditType.APPROVAL_ENDED
    ]
    match cell.story:
        case "approved" | "left" | "killed":
            assert said == ["accept"]
            used = [event for event in cell.events if event.type == AuditType.APPROVAL_CONSUMED][-1]
            intents = [event for event in cell.events if event.type == AuditType.CALL_INTENDED]
            assert used.call in [event.call for event in intents]
        case "declined":
            assert said == ["decline"]
        case "expired":
            assert said == []
            assert "expired" in ends
        case _:
            assert said in (["accept"], [])
            assert AuditType.TOOL_BLOCKED in [event.type for event in cell.events]
