"""Whether a call of a tool may leave: its standing, its limits, its arguments, a person, a record.

The last steps of the gate, in the order of design §1. Whoever is refused costs nobody's time: a
person is asked only about a call that could go on at once, and an intent is written down only of
one that does.
"""

from collections.abc import Awaitable
from typing import Any, Final, Protocol

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.call_hold import GoOn, Hold, Recording
from comity.kernel.catalog import Offer
from comity.kernel.catalog_access import Standing, Tools
from comity.rules.patterns import Level
from comity.rules.refusals import Refusal
from comity.wire import jsonrpc
from comity.wire.errors import APPROVAL_REQUIRED, INVALID_TOOL_ARGS, MalformedMessage
from comity.wire.grants import Effect, Grant
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import CALL_TOOL
from comity.wire.parties import Actor

type Outcome = Refusal | Hold | None
"""Why a call may not go on, or not yet; None where it may."""


class Limits(Protocol):
    """Who counts what each party, key, tool and server may do in a while."""

    def take(self, actor: Actor, server: str, name: str, cost: int) -> Refusal | None: ...
    def arrive(self, actor: Actor) -> Refusal | None: ...


class Inspection(Protocol):
    """Who looks at the arguments of a call; quickly, or in a while."""

    def inspect(
        self, offer: Offer, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None: ...


class Answers(Protocol):
    """Who knows what a person has said once and for all."""

    def standing_answer(
        self, actor: Actor, server: str, name: str, arguments: object, definition: str = ""
    ) -> Grant | None: ...


class Asking(Protocol):
    """Who puts a call before a person."""

    def hold(
        self, call: Call, offer: Offer, standing: Standing, arguments: object, frame: Frame
    ) -> Hold | Refusal: ...

    def goes_on(
        self, call: Call, offer: Offer, standing: Standing, arguments: object, frame: Frame
    ) -> bool:
        """Whether a person was asked already when this began, of which it is the next round."""
        ...

    def taken_out(self, call: Call, frame: Frame) -> Frame:
        """The request without what it says to a question of ours, which the call has from now."""
        ...


class Reaching[Beyond](Protocol):
    """Who knows how far a call of a tool may reach, and puts before a person what is beyond."""

    def judge(self, call: Call, offer: Offer, arguments: object) -> Refusal | Beyond | None: ...
    def hold(
        self, call: Call, offer: Offer, standing: Standing, beyond: Beyond, frame: Frame
    ) -> Hold | Refusal: ...


class OwnTasks(Protocol):
    """Who knows the calls that wait for a person apart from their clients."""

    def answers(self, call: Call, frame: Frame) -> bool: ...


class Admission:
    """Lets calls of tools go on, one step after the other; the first that refuses ends it."""

    def __init__(
        self,
        tools: Tools | None = None,
        limits: Limits | None = None,
        inspection: Inspection | None = None,
        answers: Answers | None = None,
    ) -> None:
        self.tools = tools
        self.limits = limits
        self.inspection = inspection
        self.answers = answers
        self.asking: Asking | None = None
        self.reaching: Reaching[Any] | None = None
        self.own_tasks: OwnTasks | None = None
        self.recording: Recording | None = None

    def heard(self, call: Call, frame: Frame) -> Frame:
        """A modern request as its server may see it. Raises where it brings what is not its own."""
        if self.asking is None or call.method != CALL_TOOL:
            return frame
        return self.asking.taken_out(call, frame)

    def answers_task(self, call: Call, frame: Frame) -> bool:
        """Whether a request is about a task of our own; then it is answered, or will be. Raises."""
        return self.own_tasks is not None and self.own_tasks.answers(call, frame)

    def examine(self, call: Call, offer: Offer, frame: Frame) -> Outcome | Awaitable[Outcome]:
        """Whether a call of a tool that its actor may use can go on, with these arguments."""
        call.target = (offer.server, offer.name)
        standing = None if self.tools is None else self.tools.standing(offer)
        refusal = None if standing is None else standing.refusal
        if refusal is None and self.limits is not None:
            cost = 1 if standing is None else standing.cost
            refusal = self.limits.take(call.outbox.actor, offer.server, offer.name, cost)
        if refusal is not None:
            return refusal
        if self._looks_at_nothing and call.brought is None and not _needs_a_person(call, standing):
            return None
        arguments = arguments_in(frame)
        found = None if self.inspection is None else self.inspection.inspect(offer, arguments)
        if found is None:
            return self._admit(call, offer, standing, arguments, frame)
        return found if isinstance(found, Refusal) else self._later(found, call, offer, frame)

    @property
    def _looks_at_nothing(self) -> bool:
        return self.inspection is None and self.recording is None and self.reaching is None

    async def _later(
        self, found: Awaitable[Refusal | None], call: Call, offer: Offer, frame: Frame
    ) -> Outcome:
        refusal = await found
        if refusal is not None:
            return refusal
        # What was known before may be otherwise now.
        standing = None if self.tools is None else self.tools.standing(offer)
        if standing is not None and standing.refusal is not None:
            return standing.refusal
        outcome = self._admit(call, offer, standing, arguments_in(frame), frame)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    def _admit(
        self,
        call: Call,
        offer: Offer,
        standing: Standing | None,
        arguments: object,
        frame: Frame,
    ) -> Outcome | Awaitable[Outcome]:
        beyond = None
        if self.reaching is not None:
            beyond = self.reaching.judge(call, offer, arguments)
        if isinstance(beyond, Refusal):
            return beyond
        if self._is_to_be_asked(call, offer, standing, arguments, beyond):
            if self.asking is None or standing is None:
                return _NOBODY_TO_ASK
            if not self.asking.goes_on(call, offer, standing, arguments, frame):
                return self.asking.hold(call, offer, standing, arguments, frame)
        elif beyond is not None and self.reaching is not None:
            if standing is None:
                return _NOBODY_TO_ASK
            return self.reaching.hold(call, offer, standing, beyond, frame)
        return self.intend(call, offer, standing, arguments)

    def _is_to_be_asked(
        self,
        call: Call,
        offer: Offer,
        standing: Standing | None,
        arguments: object,
        beyond: object = None,
    ) -> bool:
        if call.brought is not None and beyond is None:
            # Its client was asked, and what it said counts whatever was granted meanwhile.
            return True
        needs_one = _needs_a_person(call, standing)
        return needs_one and not self._is_answered(call, offer, standing, arguments)

    def intend(
        self, call: Call, offer: Offer, standing: Standing | None, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """The last step, also of a call to which a person has said yes."""
        if self.recording is None or standing is None:
            return None
        return self.recording.intend(call, offer, standing, arguments)

    def _is_answered(
        self, call: Call, offer: Offer, standing: Standing | None, arguments: object
    ) -> bool:
        """Whether a person has answered all calls like this one already."""
        if self.answers is None or standing is None or standing.is_confirmed_always:
            return False
        if standing.asked_each_time is not None:
            return False
        called = (call.outbox.actor, offer.server, offer.name, arguments)
        found = self.answers.standing_answer(*called, standing.digest)
        if found is not None:
            call.answered_by = found.id
        return found is not None


def _needs_a_person(call: Call, standing: Standing | None) -> bool:
    judged = call.judged
    if standing is None:
        return judged is not None and judged.effect is Effect.ASK
    if judged is None or judged.effect is Effect.ASK or standing.is_confirmed_always:
        return True
    return standing.must_be_confirmed and judged.level is not Level.OFFER


_NOBODY_TO_ASK: Final = Refusal(
    APPROVAL_REQUIRED,
    "this call needs a person's approval, and nobody can be asked here; an operator can grant the "
    "tool itself",
)


def arguments_in(frame: Frame) -> object:
    """What a tool is called with; nothing is the same as an empty object. Raises."""
    raw: Raw | None = jsonrpc.params_of(frame).get("arguments")
    if raw is None:
        return {}
    arguments = jsonrpc.value(raw)
    if not isinstance(arguments, dict):
        raise MalformedMessage("arguments must be an object", INVALID_TOOL_ARGS)
    return arguments  # pyright: ignore[reportUnknownVariableType]  # JSON: any values


async def enforce(call: Call, outcome: Refusal | Hold | Awaitable[Outcome], go_on: GoOn) -> bool:
    """Let a call go on, answer why it may not, or have it wait for a person."""
    found = await outcome if isinstance(outcome, Awaitable) else outcome
    if isinstance(found, Refusal):
        call.turn_down(found)
    elif found is not None:
        found.begin(go_on)
    return found is None
