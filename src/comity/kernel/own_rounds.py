"""A call that waits for a person, as a round of the modern era: `input_required`.

Whoever may answer for itself is asked by a form; anybody else whose client can show a page is given
one. No state is held for it here but the ask itself: the sealed state names it (`rules.ask_forms`),
and whichever node gets the next request, also after a restart, goes on from there.
"""

from collections.abc import Mapping

from msgspec import Raw

from comity.kernel.continuing import Continuing
from comity.kernel.held import HeldCall
from comity.rules import ask_forms, eras
from comity.rules.ask_forms import Mode
from comity.wire import jsonrpc
from comity.wire.asks import Ask


class OwnRounds:
    """The form for clients of the modern era."""

    def take(self, held: HeldCall, ask: Ask) -> bool:
        call = held.call
        if call.client is not None or Continuing.is_round(held.frame):
            # What it brings for its server would be lost in a round of ours.
            return False
        mode = mode_for(held, ask, eras.said_in(held.frame).capabilities)
        if mode is None:
            return False
        actor = call.outbox.actor
        state = ask_forms.state_of(held.holding.key, ask, actor.party, mode)
        answer = jsonrpc.result(
            call.asker_id, ask_forms.round_with(params_of(held, ask, mode), state)
        )
        held.let_go(lambda call: call.put_off(answer, held.pending(ask)))
        return True


def params_of(held: HeldCall, ask: Ask, mode: Mode) -> dict[str, object]:
    """What a client is asked, or shown."""
    if mode is Mode.FORM:
        return ask_forms.form_of(ask)
    url = held.holding.link_to(ask, held.call.outbox.actor)
    return ask_forms.page_of(ask, url, held.way(ask).who)


def mode_for(held: HeldCall, ask: Ask, capabilities: Mapping[str, Raw]) -> Mode | None:
    """How the client of a call can be asked: only who may answer for itself is, by a form."""
    modes, actor = ask_forms.modes_in(capabilities), held.call.outbox.actor
    if Mode.FORM in modes and held.approvals.why_not(ask, actor) is None:
        spoken = any(answer.by == actor.party for answer in ask.answers)
        if not spoken:
            return Mode.FORM
    if actor.lacks_token:
        # Its answer would count for nothing, and neither would its visit to the page.
        return None
    return Mode.URL if Mode.URL in modes else None
