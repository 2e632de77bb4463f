"""A request of the gateway's own: its answer, or its failure, is whoever asked's."""

import pytest

from comity.kernel.own_call import OwnCall
from comity.wire import jsonrpc
from comity.wire.errors import Unavailable
from comity.wire.jsonrpc import Frame


async def test_the_first_answer_or_failure_counts() -> None:
    told = list[Frame]()
    call = OwnCall(jsonrpc.request(1, "ping"), told.append)
    call.told(jsonrpc.notification("notifications/progress"))
    call.answered(jsonrpc.result(1, {}))
    call.failed(Unavailable("too late"))
    assert (await call.done).id == 1
    assert len(told) == 1
    broken = OwnCall(jsonrpc.request(2, "ping"), None)
    broken.failed(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await broken.done
