"""What is written down of live servers, without secrets, and not as often as one likes. (§13.2)"""

from comity.kernel.audit_recorder import AT_ONCE, LEFT_OUT
from comity.kernel.live.noting import Deed, Noting
from comity.wire.audit import Event, Result, Type
from comity.wire.parties import GATEWAY, PartyKind
from tests.kernel.journals import FailingStore, kept


def hide(said: object) -> object:
    return str(said).replace("hunter2", "***")


async def test_an_entry_names_the_server_the_set_the_inference_and_what_came_of_it() -> None:
    found: list[Event] = []
    async with kept(FailingStore()) as journal:
        journal.noted.append(found.append)
        noting = Noting(journal, hide)
        details = {"label": "hunter2"}
        deed = Deed("mem", "push/event", "memory.push", "inf-1", "ok", details=details)
        noting.note(Type.FEATURE_USED, deed)
        noting.keep(Type.FEATURES_TOLD, Deed("mem", by=GATEWAY), Result.SUCCESS)
    mine = [each for each in found if "feature" in each.type]
    assert (mine[0].actor, mine[0].kind, mine[0].server) == ("server:mem", PartyKind.SERVER, "mem")
    assert mine[0].details == {
        "label": "***",
        "method": "push/event",
        "feature_set": "memory.push",
        "inference_id": "inf-1",
        "outcome": "ok",
    }
    assert mine[1].kind is PartyKind.SYSTEM


async def test_of_a_flood_only_the_number_is_kept_and_each_server_has_its_own() -> None:
    found: list[Event] = []
    async with kept(FailingStore()) as journal:
        journal.noted.append(found.append)
        noting = Noting(journal, hide)
        for _ in range(AT_ONCE * 3):
            noting.note(Type.FEATURE_REFUSED, Deed("loud"), Result.BLOCKED)
        noting.note(Type.FEATURE_REFUSED, Deed("calm"), Result.BLOCKED)
        noting.forget("loud")
        noting.note(Type.FEATURE_REFUSED, Deed("loud"), Result.BLOCKED)
    loud = [each for each in found if each.server == "loud"]
    assert len(loud) == AT_ONCE + 1
    assert LEFT_OUT not in loud[-1].details
    assert len([each for each in found if each.server == "calm"]) == 1


async def test_how_many_were_left_out_is_said_by_the_next_one() -> None:
    found: list[Event] = []
    async with kept(FailingStore()) as journal:
        journal.noted.append(found.append)
        noting = Noting(journal, hide)
        deed = Deed("loud")
        for _ in range(AT_ONCE + 5):
            noting.note(Type.FEATURE_REFUSED, deed)
        noting._bound._counts[f"{Type.FEATURE_REFUSED} SUCCESS loud"].taken = 0  # pyright: ignore[reportPrivateUsage]
        noting.note(Type.FEATURE_REFUSED, deed)
    assert found[-2].details[LEFT_OUT] == 5 or found[-1].details.get(LEFT_OUT) == 5


def test_without_a_journal_nothing_is_written() -> None:
    noting = Noting()
    noting.note(Type.FEATURE_USED, Deed("x"))
    noting.keep(Type.FEATURE_USED, Deed("x"))
