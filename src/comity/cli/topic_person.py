"""A person in a topic: what was typed becomes what is said, and proposals are decided.

Nothing typed is lost silently: what cannot be done is told, with what to do instead.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Protocol

from rich.console import RenderableType
from rich.text import Text

from comity.cli import topic_words
from comity.cli.ends import suggestion
from comity.cli.schemas import read_arguments
from comity.cli.show import table
from comity.cli.topic_proposals import Proposals, way_to
from comity.cli.topic_telling import Telling
from comity.rules.proposals import Proposal as Followed
from comity.rules.topics import Violation
from comity.sdk.events import Event, Proposal, Refused
from comity.sdk.participant import Participant
from comity.sdk.writing import kind_of
from comity.wire import mcp
from comity.wire.envelope import CHAT, PROPOSAL, REJECT, REQUEST
from comity.wire.errors import MalformedMessage, Misconfigured, Unavailable

METHODS: Final = frozenset(
    {
        *(mcp.LIST_TOOLS, mcp.LIST_RESOURCES, mcp.LIST_TEMPLATES, mcp.LIST_PROMPTS),
        *(mcp.READ_RESOURCE, mcp.GET_PROMPT, mcp.PING),
    }
)
"""What may be proposed beside calls of tools, by its own name."""

HELP: Final = (
    ("TEXT", "say it to all; a line that begins with two slashes is said with one"),
    ("/to PARTY TEXT", "say it to one party"),
    ("/propose PARTY TOOL [ARGS]", "suggest a call; ARGS are KEY=VALUE or a JSON object"),
    ("/call PARTY TOOL [ARGS]", "make it, or propose it where you may not"),
    ("/proposals", "list what waits for somebody"),
    ("/show N", "show the proposal with that number in full"),
    ("/approve N [PARTY]", "have it done, by PARTY where it was proposed to nobody"),
    ("/decline N [WHY]", "say no to it"),
    ("/who", "list who is here, and what each may send"),
    ("/quit", "leave"),
)

type Doing = Callable[[str], Awaitable[None]]


class Shows(Protocol):
    """Where a person is shown things."""

    def tell(self, said: Text) -> None:
        """Something that happened in the topic."""
        ...

    def notice(self, said: str) -> None:
        """A word to the person alone."""
        ...

    def page(self, *things: RenderableType) -> None:
        """What the person wanted to see."""
        ...

    def consider(self, person: "Person", number: int, to: str) -> None:
        """Show a proposal in full, and let the person approve it then."""
        ...


class Person:
    """Whoever sits here."""

    def __init__(self, me: Participant, shows: Shows) -> None:
        self.me = me
        self._shows = shows
        self.proposals = Proposals(me)
        self._telling = Telling(me.id, me.capabilities, self.proposals.number)
        # What was said to which proposal by a kind that the topic may not know.
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

    # What happens

    def greet(self) -> None:
        """Say who sits where, and with whom."""
        others = topic_words.names(list(self.me.others)) if self.me.others else Text("nobody else")
        found = Text("You are ").append_text(topic_words.name(self.me.id))
        found.append(f" in {self.me.topic}. Here: ").append_text(others)
        self._shows.tell(found)
        self._shows.tell(Text(f"You may send: {topic_words.listed(self.me.capabilities)}"))

    async def hear(self) -> None:
        """Tell what happens, until the membership is over."""
        coming = self.me.events()
        for event in self.me.already:
            self.heard(event)
        async for event in coming:
            self.heard(event)

    def heard(self, event: Event) -> None:
        if isinstance(event, Proposal):
            self.proposals.number(event.id)
        if isinstance(event, Refused) and self._was_rejection(event):
            return
        said = self._telling.told(event)
        if said is not None:
            self._shows.tell(said)
        if isinstance(event, Refused):
            self.failures += 1
            if event.error == Violation.CAPABILITY:
                self._shows.notice(way_to(self.me, event.attempted_kind))

    # What is typed

    async def typed(self, line: str) -> None:
        """Do what a line says; whatever is wrong with it is told."""
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
        """Until all that was asked for has been answered, or has failed."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    def leave(self) -> None:
        for task in self._waiting:
            task.cancel()

    async def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        doing = self._commands.get(word.lower())
        if doing is None:
            hint = suggestion(word, self._commands) or "/help lists what there is."
            raise Misconfigured(f"there is no /{word:.40}. {hint}")
        await doing(rest.strip())

    async def _chat(self, text: str, *to: str) -> None:
        self._demand(CHAT)
        await self.me.chat(text, to=to)
        self._shows.tell(topic_words.said(self.me.id, self.me.id, text, to))

    async def _say_to(self, rest: str) -> None:
        party, _, text = rest.partition(" ")
        if not text.strip():
            raise Misconfigured("write it as /to PARTY TEXT")
        await self._chat(text.strip(), self.party(party))

    def party(self, said: str) -> str:
        """A member by its id, or by what stands behind the colon of it. Raises Misconfigured."""
        others = list(self.me.others)
        found = [each for each in others if said == each] or [
            each for each in others if each.partition(":")[2].partition("@")[0] == said
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise Misconfigured(f"{said!r:.80} may be {' or '.join(found[:5])}; say which")
        hint = suggestion(said, others) or "/who lists who is."
        raise Misconfigured(f"{said!r:.80} is not here. {hint}")

    async def _propose(self, rest: str) -> None:
        to, method, params = self._read(rest, "/propose PARTY TOOL [KEY=VALUE]...")
        self._demand(kind_of(PROPOSAL, method, params))
        handle = await self.me.propose(method, params, to=to)
        me, number = self.me.id, self.proposals.number(handle.id)
        what = topic_words.deed(method, params)
        self._shows.tell(topic_words.proposed(me, me, (to,), number, what))
        self._begin(self._outcome(handle.response(), f"[{number}]"))

    async def _call(self, rest: str) -> None:
        to, method, params = self._read(rest, "/call PARTY TOOL [KEY=VALUE]...")
        if not self.me.may_send(kind_of(REQUEST, method, params)):
            await self._propose(rest)
            return
        me, what = self.me.id, topic_words.deed(method, params)
        self._shows.tell(topic_words.asked(me, me, (to,), what))
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
        return to, mcp.CALL_TOOL, {"name": what, "arguments": said}

    # What is decided

    async def _approve(self, rest: str) -> None:
        chosen, _, party = rest.partition(" ")
        number, found = self.proposals.get(chosen)
        to = self.party(party.strip()) if party.strip() else ""
        self.proposals.check(number, found, to)
        self._shows.consider(self, number, to)

    def approve(self, number: int, to: str = "") -> None:
        """Have it done; the answer is told when it comes."""
        found = self.proposals.get(number)[1]
        self._begin(self._outcome(self.me.fulfil(found, to=to or None), f"[{number}]"))

    async def _decline(self, rest: str) -> None:
        chosen, _, why = rest.partition(" ")
        number, found = self.proposals.get(chosen)
        await self.decline(number, found, why.strip())

    async def decline(self, number: int, proposal: Followed, why: str = "") -> None:
        """Say no: as later versions of the document do where that is known, or else in words."""
        self.proposals.check_open(number, proposal)
        self.proposals.declined.add(proposal.id)
        if self._may_reject and self.me.may_send(REJECT):
            self._rejections[await self.me.reject(proposal, why)] = proposal, why
        else:
            await self._decline_in_words(proposal, why)
        because = f": {topic_words.words(why)}" if why else ""
        self._shows.tell(
            topic_words.name(self.me.id, self.me.id).append(f" decline [{number}]{because}")
        )

    def _was_rejection(self, event: Refused) -> bool:
        """A topic that knows no rejections says so once; then it is said in words."""
        rejected = self._rejections.pop(event.id, None)
        if rejected is None:
            return False
        self._may_reject = False
        self._begin(self._decline_in_words(*rejected))
        return True

    async def _decline_in_words(self, proposal: Followed, why: str) -> None:
        if self.me.may_send(CHAT):
            what = topic_words.deed(proposal.method, proposal.params)
            said = f"I decline your proposal {what}" + (f": {why}" if why else ".")
            await self.me.chat(said, to=proposal.proposer, reply_to=proposal.id)

    def _begin(self, doing: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(doing)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _outcome(self, answer: Awaitable[object], about: str) -> None:
        """The answer itself is told as what it is in the topic; here only that there is none."""
        try:
            await answer
        except (PermissionError, TimeoutError, MalformedMessage, Unavailable) as problem:
            self.fail(f"{about}: {problem}")

    def fail(self, because: str) -> None:
        self.failures += 1
        self._shows.notice(because)

    # What is looked at

    async def _show(self, rest: str) -> None:
        self._shows.page(self.proposals.in_full(self.proposals.get(rest)[0]))

    async def _list(self, _: str) -> None:
        found = self.proposals.undecided()
        if not found:
            self._shows.notice("nothing waits for anybody")
            return
        self._shows.page(*(self.proposals.line_of(number, each) for number, each in found))

    async def _who(self, _: str) -> None:
        everybody = {self.me.id: self.me.capabilities, **self.me.others}
        rows = [
            (topic_words.name(each, self.me.id), topic_words.listed(may))
            for each, may in everybody.items()
        ]
        self._shows.page(table(("WHO", "MAY SEND"), rows))

    async def _help(self, _: str) -> None:
        self._shows.page(table(("", ""), HELP))

    async def _quit(self, _: str) -> None:
        self.has_left = True

    def _demand(self, kind: str) -> None:
        if not self.me.may_send(kind):
            raise Misconfigured(way_to(self.me, kind))
