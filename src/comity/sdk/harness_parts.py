"""What a host has, as small as a test needs it: a model, the state of tools, places outside."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import jsonpatch

from comity.wire import inference, jsonrpc
from comity.wire.channels import Changes, Descriptor, Incoming
from comity.wire.checkpoints import Checkpoint
from comity.wire.contents import text_of
from comity.wire.errors import INTERNAL_ERROR, MalformedMessage
from comity.wire.inference import Finish, Usage, Wanted


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model is to say."""

    text: str
    finish: Finish = Finish.END

    @property
    def pieces(self) -> list[str]:
        return re.findall(r"\S+\s*|\s+", self.text)

    def told(self) -> dict[str, object]:
        usage = Usage(10, len(self.pieces))
        return inference.answered(self.text, "test-model", self.finish, usage)


@dataclass(slots=True)
class Models:
    """A model that says what it was told to; `asked` is what it was asked."""

    asked: list[Wanted] = field(default_factory=list[Wanted])
    answers: list[Answer] = field(default_factory=list[Answer])

    def say(self, *texts: str) -> None:
        """What it answers next, one text after the other; the last one from then on."""
        self.answers.extend(map(Answer, texts))

    def answer(self, wanted: Wanted) -> Answer:
        self.asked.append(wanted)
        if not self.answers:
            because = "the test's model has nothing to say: tell it with `models.say`"
            raise MalformedMessage(because, INTERNAL_ERROR)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def last(self) -> str:
        """The text of what it was asked last."""
        return "\n".join(text_of(each.content) for each in self.asked[-1].messages)


@dataclass(slots=True)
class Kept:
    """The checkpoints of each feature set, and where each stands. (MCPL §8)"""

    data: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    parents: dict[tuple[str, str], str | None] = field(
        default_factory=dict[tuple[str, str], str | None]
    )
    current: dict[str, str] = field(default_factory=dict[str, str])

    def carried(self, feature: str) -> dict[str, Any]:
        """What goes with a call: the data that are here, or the name alone. (§8.4)"""
        at = self.current.get(feature)
        if at is None:
            return {}
        return (
            {"state": self.data[feature, at]} if (feature, at) in self.data else {"checkpoint": at}
        )

    def keep(self, feature: str, found: Checkpoint) -> str | None:
        """Keep what a call brought back; gives what is wrong with it, and keeps its name. (D-67)"""
        key = (feature, found.name)
        self.current[feature], self.parents[key] = found.name, found.parent
        if found.parent is not None and (feature, found.parent) not in self.parents:
            return f"state: there is no checkpoint {found.parent!r:.80}"
        if found.data is not None:
            self.data[key] = jsonrpc.value(found.data)
        elif found.patch is not None:
            before = self.data.get((feature, found.parent or ""))
            operations = cast("list[dict[str, Any]]", jsonrpc.value(found.patch))
            try:
                self.data[key] = jsonpatch.JsonPatch(operations).apply(before)
            except jsonpatch.JsonPatchException as problem:
                return f"state: a patch cannot be applied: {problem}"
        return None

    def return_to(self, feature: str, checkpoint: str) -> None:
        self.current[feature] = checkpoint


@dataclass(slots=True)
class Places:
    """Channels that the server registered, and what came in through them."""

    known: dict[str, Descriptor] = field(default_factory=dict[str, Descriptor])
    heard: list[Incoming] = field(default_factory=list[Incoming])

    def change(self, changes: Changes) -> None:
        for each in (*changes.added, *changes.updated):
            self.known[each.id] = each
        for id in changes.removed:
            self.known.pop(id, None)

    def take(self, named: str, found: Incoming | MalformedMessage) -> Mapping[str, Any]:
        if isinstance(found, MalformedMessage):
            return {"messageId": named, "accepted": False, "reason": str(found)}
        if found.channel not in self.known:
            return {"messageId": named, "accepted": False, "reason": "Unknown channel"}
        self.heard.append(found)
        conversation = f"conv-{found.channel}"
        return {"messageId": named, "accepted": True, "conversationId": conversation}

    def listed(self) -> Mapping[str, Any]:
        return {"channels": [_described(each) for each in self.known.values()]}


def _described(each: Descriptor) -> dict[str, Any]:
    told = {"id": each.id, "type": each.type, "label": each.label}
    return {**told, "direction": str(each.direction), "address": each.address}
