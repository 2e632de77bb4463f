"""How clients are dealt with while a person is asked: every form, the best that suits first."""

from comity.kernel.held import Holding
from comity.kernel.own_rounds import OwnRounds
from comity.kernel.own_tasks import OwnTasks
from comity.kernel.url_asks import StreamAsks
from comity.rules.ask_links import Link, Links
from comity.rules.keys import mac
from comity.rules.tasks import TaskNames
from comity.wire.asks import Ask
from comity.wire.parties import Actor


def put_to_clients(holding: Holding, pepper: bytes, links: Links) -> OwnTasks:
    """Every node that has the pepper understands what another has put to a client.

    Returns what answers requests about the tasks of waiting calls.
    """
    holding.key = mac(pepper, b"asks put to clients")
    holding.token_for = lambda ask, actor: _token(links, ask, actor)
    own = OwnTasks(TaskNames(mac(pepper, b"task names")), holding.approvals.clock)
    holding.forms = [OwnRounds(), StreamAsks(), own]
    return own


def _token(links: Links, ask: Ask, actor: Actor) -> str:
    return links.seal(Link(ask.id, actor.party, ask.expires_at, actor.credential))
