"""Each thing that happens in a topic, told in a line to whoever sits there."""

from collections.abc import Callable
from typing import Any

from rich.text import Text

from comity.cli.topic_words import (
    asked,
    deed,
    listed,
    name,
    names,
    outcome_of,
    proposed,
    said,
    words,
)
from comity.rules.ask_words import one_line
from comity.sdk.events import (
    Chat,
    Disconnected,
    Event,
    Fulfilment,
    Misbehaviour,
    Missed,
    Other,
    Presence,
    Proposal,
    Reconnected,
    Refused,
    Rejection,
    Request,
    Response,
    Welcome,
    Withdrawal,
)

type Number = Callable[[str], int]
"""Which number a proposal has here, by its id."""


class Telling:
    """Events in words, for one member."""

    def __init__(self, me: str, may: tuple[str, ...], number: Number) -> None:
        self._me = me
        self._may = may
        self._number = number
        self._of: dict[type[object], Callable[[Any], Text | None]] = {
            Chat: self._chat,
            Proposal: self._proposal,
            Request: self._request,
            Response: self._response,
            Rejection: self._rejection,
            Withdrawal: self._withdrawal,
            Fulfilment: self._fulfilment,
            Presence: self._presence,
            Other: self._other,
            Welcome: self._welcome,
            Refused: _refused,
            Missed: _missed,
            Misbehaviour: _misbehaviour,
            Disconnected: _disconnected,
            Reconnected: _reconnected,
        }

    def told(self, event: Event) -> Text | None:
        """None where there is nothing to say that the person does not know."""
        return self._of[type(event)](event)

    def _chat(self, event: Chat) -> Text:
        return said(event.sender, self._me, event.text, event.to)

    def _proposal(self, event: Proposal) -> Text:
        what, number = deed(event.method, event.params), self._number(event.id)
        return proposed(event.sender, self._me, event.to, number, what)

    def _request(self, event: Request) -> Text:
        return asked(event.sender, self._me, event.to, deed(event.method, event.params))

    def _response(self, event: Response) -> Text:
        found = name(event.sender, self._me).append(" answers ", "dim")
        outcome, is_wrong = outcome_of(event)
        found.append_text(names(event.to, self._me)).append(": ", "dim")
        return found.append(words(outcome), "red" if is_wrong else "")

    def _rejection(self, event: Rejection) -> Text:
        return self._ended(event, "declines")

    def _withdrawal(self, event: Withdrawal) -> Text:
        return self._ended(event, "withdraws")

    def _ended(self, event: Rejection | Withdrawal, verb: str) -> Text:
        number = self._number(event.proposal.id)
        found = name(event.sender, self._me).append(f" {verb} [{number}]", "yellow")
        return found.append(f": {words(event.reason)}") if event.reason else found

    def _fulfilment(self, event: Fulfilment) -> Text:
        by, number = name(event.request.sender, self._me), self._number(event.proposal.id)
        if not event.is_first:
            return by.append(f" had [{number}] done, which was done already", "bold yellow")
        if not event.is_as_proposed:
            return by.append(f" had [{number}] done with other arguments", "bold yellow")
        verb = "approve" if event.request.sender == self._me else "approves"
        return by.append(f" {verb} [{number}]", "green")

    def _presence(self, event: Presence) -> Text | None:
        if event.id == self._me:
            return None
        return name(event.id).append(" has come" if event.has_come else " has left", "dim")

    def _other(self, event: Other) -> Text:
        return name(event.sender).append(f" sent {one_line(event.envelope.kind)}", "dim")

    def _welcome(self, event: Welcome) -> Text | None:
        # One comes with every new connection, and says nothing new then.
        was, self._may = self._may, event.capabilities
        if was == event.capabilities:
            return None
        return Text(f"You may send now: {listed(event.capabilities)}", style="yellow")


def _refused(event: Refused) -> Text:
    return Text(f"Not passed on: {words(event.message)}", style="red")


def _missed(event: Missed) -> Text:
    count = "1 envelope was" if event.count == 1 else f"{event.count} envelopes were"
    because = f": {words(event.because)}" if event.because else ""
    return Text(f"{count} missed{because}", style="bold yellow")


def _misbehaviour(event: Misbehaviour) -> Text | None:
    # The first time, and ever more rarely: nobody fills a screen with what is dropped.
    if event.count & (event.count - 1):
        return None
    who = one_line(event.sender) or "somebody"
    times = "" if event.count == 1 else f" ({event.count} times by now)"
    return Text(f"Dropped from {who}: {words(event.because)}{times}", style="yellow")


def _disconnected(event: Disconnected) -> Text:
    return Text(f"{words(event.because)}; trying again", style="yellow")


def _reconnected(_: Reconnected) -> Text:
    return Text("Back in the topic", style="green")
