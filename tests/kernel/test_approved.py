"""What a person has said yes to, on its way: what is found when it is looked at once more."""

from datetime import timedelta

import pytest

from comity.kernel import approved
from comity.kernel.approved import LOOKS, Approved, looked_at
from comity.kernel.call import Call
from comity.kernel.catalog import Kind, Offer
from comity.kernel.outbox import Outbox
from comity.rules.examined import UNLISTED
from comity.rules.refusals import Refusal
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    ACCESS_DENIED,
    POLICY_UNKNOWN,
    TOOL_DISABLED,
    TOOL_NOT_FOUND,
    Unavailable,
)
from tests.kernel.asking import AGENT, Bed, asking


def _approved(bed: Bed, definition: bytes = b'{"name":"delete"}') -> Approved:
    outbox = Outbox()
    outbox.actor = AGENT
    call = Call(jsonrpc.request(1, mcp.CALL_TOOL, {}), outbox, None, 0)
    offer = Offer("srv__delete", "srv", "delete", definition)
    return Approved(call, offer, bed.tools.standing(offer), {})


def _found(bed: Bed, run: Approved) -> Refusal | None:
    return run.changed(bed.grants, bed.front.catalog, bed.admission)


async def test_what_is_as_it_was_may_run() -> None:
    async with asking() as bed:
        assert _found(bed, _approved(bed)) is None


async def test_what_is_not_as_it_was_may_not() -> None:
    async with asking() as bed:
        run = _approved(bed)
        bed.tools.version = "second"
        refusal = _found(bed, run)
        assert refusal is not None
        assert refusal.fault is TOOL_DISABLED
        bed.grants.denied = True
        refusal = _found(bed, run)
        assert refusal is not None
        assert refusal.fault is ACCESS_DENIED


async def test_what_was_listed_and_is_no_more_may_not_but_what_never_was_may() -> None:
    async with asking() as bed:
        run, unlisted = _approved(bed), _approved(bed, UNLISTED)
        bed.front.catalog.put("srv", Kind.TOOL, ())
        refusal = _found(bed, run)
        assert refusal is not None
        assert refusal.fault is TOOL_NOT_FOUND
        assert _found(bed, unlisted) is None


async def test_where_nothing_is_known_of_tools_grants_alone_decide() -> None:
    async with asking() as bed:
        bed.admission.tools = None
        assert _found(bed, _approved(bed)) is None


async def test_a_moment_in_which_nothing_is_known_for_sure_ends_nothing() -> None:
    looks: list[int] = []

    def look() -> Refusal | None:
        looks.append(1)
        if len(looks) < LOOKS:
            raise Unavailable("not known", POLICY_UNKNOWN, timedelta(milliseconds=1))
        return None

    assert await looked_at(look) is None
    assert len(looks) == LOOKS


async def test_what_stays_unknown_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> Refusal | None:
        raise Unavailable("not known", POLICY_UNKNOWN)

    monkeypatch.setattr(approved, "AGAIN", timedelta(0))
    with pytest.raises(Unavailable, match="not known"):
        await looked_at(look)
