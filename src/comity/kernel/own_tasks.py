"""Tasks of the gateway's own: a call that waits for a person goes on apart from its client.

Rule 1: a client that speaks of tasks is given one, and asks after it; when there is an answer, the
        call runs, and its result waits here for a while. Who else asks finds no such task.
Rule 2: a task lives on this node and as long as it. The ask stands all the same, for the same call
        made again.
Rule 3: nothing that is said to a task answers the ask.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from secrets import token_hex
from typing import Final

from comity.kernel.call import Call
from comity.kernel.chores import Chores
from comity.kernel.continuing import Continuing
from comity.kernel.held import HeldCall
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session
from comity.rules import ask_forms, own_tasks, tasks
from comity.rules.own_tasks import LASTS, OWN, Shown, Status
from comity.rules.tasks import NO_SUCH_TASK, TaskNames
from comity.wire import jsonrpc
from comity.wire.asks import Ask
from comity.wire.errors import INVALID_PARAMS, MISSING_CAPABILITY, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame

MOST: Final = 1000
MOST_OF_ONE: Final = 50
MOST_WAITING: Final = 64
SINCE: Final = "2025-11-25"


class OwnTask:
    """One call that goes on apart from its client, and what came of it."""

    def __init__(self, id: str, held: HeldCall, ask: Ask, clock: Callable[[], datetime]) -> None:
        self.id = id
        self.call = held.call
        self.party = held.call.outbox.actor.party
        self.modern = held.call.client is None
        self.began = self.changed = clock()
        self.status = Status.WORKING
        self.message = ask_forms.waiting(ask, held.way(ask))
        self.answer: Frame | None = None
        self.reader: Call | None = None
        self._clock = clock
        self._said: list[bytes] = []
        self._waiting: list[Callable[[], None]] = []

    @property
    def shown(self) -> Shown:
        return Shown(self.id, self.status, self.message, self.began, self.changed)

    async def follow(self, outbox: Outbox) -> None:
        """Read what the call says, to its end."""
        while not outbox.final or outbox.frames:
            await outbox.wait()
            outbox.nudged = outbox.suspended = False
            for data in outbox.take():
                self._hear(data)
        if self.status is Status.WORKING:
            self._end(Status.CANCELLED, "it was cancelled")

    def when_over(self, tell: Callable[[], None]) -> None:
        if self.status is Status.WORKING:
            self._waiting.append(tell)
        else:
            tell()

    def read_by(self, call: Call) -> None:
        """Have all that is said amid the call said there, from now on."""
        self.reader = call
        said, self._said = self._said, []
        for data in said:
            call.outbox.put(data)

    def _hear(self, data: bytes) -> None:
        frame = jsonrpc.decode(data)
        if frame.method is UNSET:
            self.answer = frame
            self._end(own_tasks.status_of(frame, modern=self.modern), "it has its answer")
        elif self.reader is not None and not self.reader.outbox.final:
            self.reader.outbox.put(data)
        elif len(self._said) < MOST_WAITING:
            self._said.append(data)

    def _end(self, status: Status, message: str) -> None:
        self.status, self.message, self.changed = status, message, self._clock()
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()


class OwnTasks:
    """The form for clients that speak of tasks, and the desk where they ask after them."""

    def __init__(self, names: TaskNames, clock: Callable[[], datetime]) -> None:
        self._names = names
        self._clock = clock
        self._tasks: OrderedDict[str, OwnTask] = OrderedDict()
        self.chores = Chores("tasks that wait for a person")

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, held: HeldCall, ask: Ask) -> bool:
        call = held.call
        if not self._suits(held) or not self._has_room(call.outbox.actor.party):
            return False
        name = token_hex(16)
        id = self._names.public(call.outbox.actor.party, OWN, name)
        task = self._tasks[name] = OwnTask(id, held, ask, self._clock)
        answer = own_tasks.begun(task.shown, modern=task.modern)
        held.patience = None
        self.chores.start(task.follow(detach(call, jsonrpc.result(call.asker_id, answer))))
        return True

    def answers(self, call: Call, frame: Frame) -> bool:
        """Whether a request is about a task of ours; then it is answered, or will be. Raises."""
        params = jsonrpc.params_of(frame)
        named = jsonrpc.text(params.get("taskId")) or ""
        if not named.startswith(f"{OWN}:"):
            return False
        party = call.outbox.actor.party
        task = self._tasks.get(self._names.own(party, named)[1])
        if task is None or task.party != party or task.modern is not (call.client is None):
            raise MalformedMessage(NO_SUCH_TASK, INVALID_PARAMS)
        if task.modern and not own_tasks.declares(frame):
            raise MalformedMessage("declare that you know tasks", MISSING_CAPABILITY)
        self._answer(task, call)
        return True

    def _answer(self, task: OwnTask, call: Call) -> None:
        if call.method == tasks.GET:
            told = own_tasks.got(task.shown, task.answer, modern=task.modern)
            call.answered(jsonrpc.result(call.asker_id, told))
        elif call.method == tasks.CANCEL:
            self._cancel(task, call)
        elif call.method == tasks.RESULT and not task.modern:
            call.hold()
            task.read_by(call)
            task.when_over(lambda: _give(task, call))
        else:
            raise MalformedMessage("this task asks its client for nothing", INVALID_PARAMS)

    def _cancel(self, task: OwnTask, call: Call) -> None:
        if task.status is Status.WORKING:
            task.call.withdraw(None)
        elif not task.modern:
            raise MalformedMessage(f"this task is {task.status} already", INVALID_PARAMS)

        def tell() -> None:
            told = own_tasks.got(task.shown, None, modern=False)
            answer = {"resultType": "complete"} if task.modern else told
            call.answered(jsonrpc.result(call.asker_id, answer))

        task.when_over(tell)

    def _suits(self, held: HeldCall) -> bool:
        client, frame = held.call.client, held.frame
        if isinstance(client, Session) and client.version < SINCE:
            return False
        if Continuing.is_round(frame) or tasks.must_be_task(held.offer.definition):
            # Rounds are not for tasks; and a tool that is a task itself has a result of its own.
            return False
        return own_tasks.wants_task(frame, modern=client is None)

    def _has_room(self, party: str) -> bool:
        for name, task in list(self._tasks.items()):
            if self._clock() - task.began < LASTS:
                break
            if task.status is not Status.WORKING:
                del self._tasks[name]
        of_one = sum(task.party == party for task in self._tasks.values())
        return len(self._tasks) < MOST and of_one < MOST_OF_ONE


def detach(call: Call, answer: Frame) -> Outbox:
    """Answer a client for now, and have its call go on apart from it; gives where that will end."""
    outbox, before = Outbox(), call.outbox
    outbox.actor, outbox.trace = before.actor, before.trace
    if call.client is not None:
        call.client.conversation.settle(call.asker_id)
    # Nothing of that name is open at the client any more; it may use the name again.
    call.asker_id = f"detached {token_hex(8)}"
    call.outbox, call.is_detached = outbox, True
    before.finish(jsonrpc.encode(answer))
    return outbox


def _give(task: OwnTask, call: Call) -> None:
    call.release()
    if task.answer is None:
        call.refuse(INVALID_PARAMS, "this task was cancelled, and has no result")
    else:
        call.answered(jsonrpc.with_id(own_tasks.related(task.answer, task.id), call.asker_id))
