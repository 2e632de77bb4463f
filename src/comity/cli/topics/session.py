"""A person in a topic: typed lines become messages, and proposals are decided."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol, cast

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from comity.approvals.presentation import format_duration, one_line
from comity.cli.arguments import read_arguments
from comity.cli.exit_status import suggest_name
from comity.cli.output import build_table
from comity.cli.topics import render
from comity.cli.topics.render import TopicEventRenderer
from comity.errors import MalformedMessage, Misconfigured, Unavailable
from comity.mcp import protocol
from comity.sdk.topics.envelopes import kind_of
from comity.sdk.topics.events import EnvelopeRefusal, Event, Proposal
from comity.sdk.topics.participant import Participant
from comity.topics.envelope import CHAT, PROPOSAL, REJECT, REQUEST
from comity.topics.rules import TopicViolation, TrackedProposal
from comity.topics.rules import TrackedProposal as Followed

MAX_NUMBERS: Final = 2_000
NO_TOOLS: Final = "it is addressed to you, and you have no tools here"


class NumberedProposals:
    """The proposals that were seen since the person joined, with numbers."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        self._numbers: dict[str, int] = {}
        self._next = 1
        self.declined: set[str] = set()

    def number(self, id: str) -> int:
        if id not in self._numbers:
            if len(self._numbers) >= MAX_NUMBERS:
                oldest = next(iter(self._numbers))
                del self._numbers[oldest]
                self.declined.discard(oldest)
            self._numbers[id] = self._next
            self._next += 1
        return self._numbers[id]

    def undecided(self) -> list[tuple[int, TrackedProposal]]:
        """The pending proposals of other members, by number."""
        found = [
            (self.number(each.id), each)
            for each in self._me.proposals
            if each.id not in self.declined and each.proposer != self._me.id
        ]
        return sorted(found, key=lambda each: each[0])

    def get(self, number: str | int) -> tuple[int, TrackedProposal]:
        """The proposal with this number, open or ended. Raises Misconfigured."""
        digits = str(number).strip("[]")
        for id, known in self._numbers.items():
            found = self._me.proposal(id) if str(known) == digits else None
            if found is not None:
                return known, found
        raise Misconfigured(f"there is no proposal {digits:.20}; /proposals lists the pending ones")

    def in_full(self, number: int, to: str = "") -> Table:
        """All details of a proposal; `to` is its target if the proposal names none."""
        _, found = self.get(number)
        whom = replace(found, target=(to,)) if to else found
        return render.in_full(whom, number, datetime.now(UTC), self.doubts(whom))

    def line_of(self, number: int, proposal: TrackedProposal) -> Text:
        """A proposal on one line, with its remaining time."""
        what = render.describe_call(proposal.method, proposal.params)
        found = render.render_proposal(
            proposal.proposer, self._me.id, proposal.target, number, what
        )
        return found.append(f" ({left_of(proposal)} left)", "dim")

    def doubts(self, proposal: TrackedProposal) -> list[str]:
        """The warnings for a person who is about to approve a proposal."""
        found: list[str] = []
        if not proposal.is_open:
            found.append(_standing(proposal))
        if self._me.id in proposal.target:
            found.append(NO_TOOLS)
        away = {*proposal.target} - {self._me.id, *self._me.others}
        if away:
            found.append(f"not here now: {one_line(', '.join(sorted(away)))}")
        dropped = self._me.reputation.get(proposal.proposer, 0)
        if dropped:
            found.append(f"{dropped} messages of its proposer were dropped")
        kind = _kind_of_doing(proposal)
        if not self._me.may_send(kind):
            found.append(way_to(self._me, kind))
        return found

    def check_open(self, number: int, proposal: TrackedProposal) -> None:
        if not proposal.is_open or proposal.id in self.declined:
            raise Misconfigured(f"[{number}] is not pending any more: {_standing(proposal)}")

    def check(self, number: int, proposal: TrackedProposal, to: str) -> None:
        """Raises Misconfigured if the person cannot approve the proposal."""
        if proposal.proposer == self._me.id:
            raise Misconfigured(f"[{number}] is your own; another member has to approve it")
        self.check_open(number, proposal)
        if not proposal.target and not to:
            way = f"/approve {number} PRINCIPAL"
            raise Misconfigured(f"[{number}] has no target; name a member: {way}")
        if self._me.id in ((to,) if to else proposal.target):
            raise Misconfigured(f"[{number}]: {NO_TOOLS}; /decline {number} says so")
        kind = _kind_of_doing(proposal)
        if not self._me.may_send(kind):
            raise Misconfigured(way_to(self._me, kind))


def way_to(me: Participant, kind: str) -> str:
    """The refusal to send a kind, with the command that an operator can run."""
    words = ("comity", "topics", "capabilities", "set", me.topic, me.id, "--add", kind)
    return f"you may not send {one_line(kind)} here; an operator can allow it: {shlex.join(words)}"


def left_of(proposal: TrackedProposal) -> str:
    return format_duration(proposal.expires_at - datetime.now(UTC))


def _standing(proposal: TrackedProposal) -> str:
    if proposal.is_open:
        return "you declined it"
    by = f" by {one_line(proposal.fulfilled_by)}" if proposal.fulfilled_by else ""
    return f"it is {proposal.status}{by}"


def _kind_of_doing(proposal: TrackedProposal) -> str:
    params = proposal.params
    if not isinstance(params, Mapping):
        return kind_of(REQUEST, proposal.method, {})
    return kind_of(REQUEST, proposal.method, cast("Mapping[str, object]", params))


METHODS: Final = frozenset(
    {
        *(
            protocol.LIST_TOOLS,
            protocol.LIST_RESOURCES,
            protocol.LIST_TEMPLATES,
            protocol.LIST_PROMPTS,
        ),
        *(protocol.READ_RESOURCE, protocol.GET_PROMPT, protocol.PING),
    }
)
"""The methods besides tools/call that a person can propose or call by name."""

HELP: Final = (
    ("TEXT", "send it to all; begin with // to send a leading slash"),
    ("/to PRINCIPAL TEXT", "send to one member"),
    ("/propose PRINCIPAL TOOL [ARGS]", "propose a call; ARGS are KEY=VALUE or JSON"),
    ("/call PRINCIPAL TOOL [ARGS]", "call, or propose if you may not call"),
    ("/proposals", "list pending proposals"),
    ("/show N", "show the proposal with that number in full"),
    ("/approve N [PRINCIPAL]", "approve it; name a PRINCIPAL if it has no addressee"),
    ("/decline N [REASON]", "decline it"),
    ("/who", "list the members, and what each may send"),
    ("/quit", "leave"),
)

type Doing = Callable[[str], Awaitable[None]]


class TopicDisplay(Protocol):
    """Shows texts to a person."""

    def show_text(self, text: Text) -> None:
        """Show an event of the topic."""
        ...

    def notice(self, text: str) -> None:
        """Show a notice to the person alone."""
        ...

    def page(self, *things: RenderableType) -> None:
        """Show the output of a command."""
        ...

    def consider(self, session: "TopicCliSession", number: int, to: str) -> None:
        """Show a proposal in full, and let the person approve it then."""
        ...


class TopicCliSession:
    """One person in a topic."""

    def __init__(self, me: Participant, shows: TopicDisplay) -> None:
        self.me = me
        self._display = shows
        self.proposals = NumberedProposals(me)
        self._telling = TopicEventRenderer(me.id, me.capabilities, self.proposals.number)
        # The proposals that were rejected with a kind that the topic may not know.
        self._rejections: dict[str, tuple[Followed, str]] = {}
        self._may_reject = True
        self._waiting: set[asyncio.Task[None]] = set()
        self.has_left = False
        self.failures = 0
        self._commands: dict[str, Doing] = {
            "to": self._say_to,
            "propose": self._propose,
            "call": self._call,
            "approve": self._approve,
            "decline": self._decline,
            "show": self._show,
            "proposals": self._list,
            "who": self._who,
            "help": self._help,
            "quit": self._quit,
        }

    # Events

    def greet(self) -> None:
        """Show the name of the person, the topic and the other members."""
        others = (
            render.render_names(list(self.me.others))
            if self.me.others
            else Text("no other members")
        )
        found = Text("You are ").append_text(render.render_name(self.me.id))
        found.append(f" in {self.me.topic}. Here: ").append_text(others)
        self._display.show_text(found)
        self._display.show_text(
            Text(f"You may send: {render.render_capabilities(self.me.capabilities)}")
        )

    async def hear(self) -> None:
        """Show events until the membership ends."""
        coming = self.me.events()
        for event in self.me.already:
            self.heard(event)
        async for event in coming:
            self.heard(event)

    def heard(self, event: Event) -> None:
        if isinstance(event, Proposal):
            self.proposals.number(event.id)
        if isinstance(event, EnvelopeRefusal) and self._was_rejection(event):
            return
        said = self._telling.render(event)
        if said is not None:
            self._display.show_text(said)
        if isinstance(event, EnvelopeRefusal):
            self.failures += 1
            if event.error == TopicViolation.CAPABILITY:
                self._display.notice(way_to(self.me, event.attempted_kind))

    # Input

    async def typed(self, line: str) -> None:
        """Run the command or send the chat of a line, and show errors."""
        if not line.strip():
            return
        try:
            if line.startswith("/") and not line.startswith("//"):
                await self._command(line[1:])
            else:
                await self._chat(line.removeprefix("/") if line.startswith("//") else line)
        except (PermissionError, MalformedMessage, Misconfigured, Unavailable) as problem:
            self.fail(str(problem))

    async def settled(self) -> None:
        """Wait until all requests are answered or have failed."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    def leave(self) -> None:
        for task in self._waiting:
            task.cancel()

    async def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        doing = self._commands.get(word.lower())
        if doing is None:
            hint = suggest_name(word, self._commands) or "/help lists what there is."
            raise Misconfigured(f"there is no /{word:.40}. {hint}")
        await doing(rest.strip())

    async def _chat(self, text: str, *to: str) -> None:
        self._demand(CHAT)
        await self.me.chat(text, to=to)
        self._display.show_text(render.render_chat(self.me.id, self.me.id, text, to))

    async def _say_to(self, rest: str) -> None:
        party, _, text = rest.partition(" ")
        if not text.strip():
            raise Misconfigured("write it as /to PRINCIPAL TEXT")
        await self._chat(text.strip(), self.party(party))

    def party(self, text: str) -> str:
        """A member by its id, or by the name after the colon. Raises Misconfigured."""
        others = list(self.me.others)
        found = [each for each in others if text == each] or [
            each for each in others if each.partition(":")[2].partition("@")[0] == text
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise Misconfigured(f"{text!r:.80} may be {' or '.join(found[:5])}; say which")
        hint = suggest_name(text, others) or "/who lists the members."
        raise Misconfigured(f"{text!r:.80} is not here. {hint}")

    async def _propose(self, rest: str) -> None:
        to, method, params = self._read(rest, "/propose PRINCIPAL TOOL [KEY=VALUE]...")
        self._demand(kind_of(PROPOSAL, method, params))
        handle = await self.me.propose(method, params, to=to)
        me, number = self.me.id, self.proposals.number(handle.id)
        what = render.describe_call(method, params)
        self._display.show_text(render.render_proposal(me, me, (to,), number, what))
        self._begin(self._outcome(handle.response(), f"[{number}]"))

    async def _call(self, rest: str) -> None:
        to, method, params = self._read(rest, "/call PRINCIPAL TOOL [KEY=VALUE]...")
        if not self.me.may_send(kind_of(REQUEST, method, params)):
            await self._propose(rest)
            return
        me, what = self.me.id, render.describe_call(method, params)
        self._display.show_text(render.render_request(me, me, (to,), what))
        self._begin(self._outcome(self.me.ask(method, params, to=to), what))

    def _read(self, rest: str, form: str) -> tuple[str, str, dict[str, object]]:
        party, _, rest = rest.partition(" ")
        what, _, rest = rest.strip().partition(" ")
        if not what:
            raise Misconfigured(f"write it as {form}")
        to, rest = self.party(party), rest.strip()
        try:
            pairs = [] if rest.startswith("{") else shlex.split(rest)
        except ValueError as problem:
            raise Misconfigured(f"{problem}; or write the arguments as JSON") from None
        said = read_arguments(pairs, rest if rest.startswith("{") else None, None)
        if what in METHODS:
            return to, what, said
        return to, protocol.CALL_TOOL, {"name": what, "arguments": said}

    # Decisions

    async def _approve(self, rest: str) -> None:
        chosen, _, party = rest.partition(" ")
        number, found = self.proposals.get(chosen)
        to = self.party(party.strip()) if party.strip() else ""
        self.proposals.check(number, found, to)
        self._display.consider(self, number, to)

    def approve(self, number: int, to: str = "") -> None:
        """Approve a proposal; the answer is shown when it arrives."""
        found = self.proposals.get(number)[1]
        self._begin(self._outcome(self.me.fulfil(found, to=to or None), f"[{number}]"))

    async def _decline(self, rest: str) -> None:
        chosen, _, why = rest.partition(" ")
        number, found = self.proposals.get(chosen)
        await self.decline(number, found, why.strip())

    async def decline(self, number: int, proposal: Followed, why: str = "") -> None:
        """Decline a proposal with a rejection, or with a chat if the topic has no rejections."""
        self.proposals.check_open(number, proposal)
        self.proposals.declined.add(proposal.id)
        if self._may_reject and self.me.may_send(REJECT):
            self._rejections[await self.me.reject(proposal, why)] = proposal, why
        else:
            await self._decline_in_words(proposal, why)
        reason = f": {render.render_words(why)}" if why else ""
        self._display.show_text(
            render.render_name(self.me.id, self.me.id).append(f" decline [{number}]{reason}")
        )

    def _was_rejection(self, event: EnvelopeRefusal) -> bool:
        """Whether a refusal is about a rejection; a chat replaces it from then on."""
        rejected = self._rejections.pop(event.id, None)
        if rejected is None:
            return False
        self._may_reject = False
        self._begin(self._decline_in_words(*rejected))
        return True

    async def _decline_in_words(self, proposal: Followed, why: str) -> None:
        if self.me.may_send(CHAT):
            what = render.describe_call(proposal.method, proposal.params)
            said = f"I decline your proposal {what}" + (f": {why}" if why else ".")
            await self.me.chat(said, to=proposal.proposer, reply_to=proposal.id)

    def _begin(self, doing: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(doing)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _outcome(self, answer: Awaitable[object], about: str) -> None:
        """Show a failure; the answer itself arrives as an event of the topic."""
        try:
            await answer
        except (PermissionError, TimeoutError, MalformedMessage, Unavailable) as problem:
            self.fail(f"{about}: {problem}")

    def fail(self, reason: str) -> None:
        self.failures += 1
        self._display.notice(reason)

    # Lists

    async def _show(self, rest: str) -> None:
        self._display.page(self.proposals.in_full(self.proposals.get(rest)[0]))

    async def _list(self, _: str) -> None:
        found = self.proposals.undecided()
        if not found:
            self._display.notice("there are no pending proposals")
            return
        self._display.page(*(self.proposals.line_of(number, each) for number, each in found))

    async def _who(self, _: str) -> None:
        everybody = {self.me.id: self.me.capabilities, **self.me.others}
        rows = [
            (render.render_name(each, self.me.id), render.render_capabilities(may))
            for each, may in everybody.items()
        ]
        self._display.page(build_table(("WHO", "MAY SEND"), rows))

    async def _help(self, _: str) -> None:
        self._display.page(build_table(("", ""), HELP))

    async def _quit(self, _: str) -> None:
        self.has_left = True

    def _demand(self, kind: str) -> None:
        if not self.me.may_send(kind):
            raise Misconfigured(way_to(self.me, kind))
