"""Forms as they are joined: every node that has the pepper understands what another put to one."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from comity.adapters.memory.asks import MemoryAsks
from comity.app.client_forms import put_to_clients
from comity.kernel.admission import Admission
from comity.kernel.approvals import Approvals
from comity.kernel.held import Holding
from comity.kernel.own_rounds import OwnRounds
from comity.kernel.own_tasks import OwnTasks
from comity.kernel.url_asks import StreamAsks
from comity.rules.ask_links import Links
from comity.wire.asks import Ask, Kind
from tests.kernel.asking import ANA, BEA, Grants

PEPPER = b"p" * 32
NOW = datetime.now(UTC)
ASK = Ask(
    *("06gtask", Kind.CONFIRM, BEA.party, "files", "delete", "digest", "message"),
    dict[str, object](),
    *(NOW, NOW + timedelta(minutes=15)),
    own=True,
)


def _holding() -> Holding:
    grants = Grants()
    grants.own.add(BEA.party)
    approvals = Approvals(MemoryAsks(lambda what, ids: None), grants)
    return Holding(approvals, Admission(), grants, cast("Any", None))


def test_two_nodes_with_one_pepper_share_a_key_and_no_others_do() -> None:
    one, other, stranger = _holding(), _holding(), _holding()
    put_to_clients(one, PEPPER, Links(PEPPER))
    put_to_clients(other, PEPPER, Links(PEPPER))
    put_to_clients(stranger, b"q" * 32, Links(b"q" * 32))
    assert one.key == other.key != stranger.key


def test_the_best_form_comes_first_and_tasks_are_answered_for() -> None:
    holding = _holding()
    own_tasks = put_to_clients(holding, PEPPER, Links(PEPPER))
    assert [type(form) for form in holding.forms] == [OwnRounds, StreamAsks, OwnTasks]
    assert own_tasks is holding.forms[-1]


def test_only_who_may_answer_gets_a_link_that_answers() -> None:
    holding, links = _holding(), Links(PEPPER)
    put_to_clients(holding, PEPPER, links)
    url = holding.link_to(ASK, BEA)
    token = url.partition("?t=")[2]
    link = links.unseal(token, ASK.id, NOW)
    assert link is not None
    assert link.party == BEA.party
    holding.judge.own.clear()  # type: ignore[attr-defined]  # the grants of this test
    assert "?" not in holding.link_to(ASK, BEA)
    assert "?t=" in holding.link_to(ASK, ANA)
