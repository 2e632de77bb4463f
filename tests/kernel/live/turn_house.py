"""Who takes turns, with a model that says what it is told to and places that only remember."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from comity.adapters.memory.conversations import MemoryConversations
from comity.kernel.live.hook_watch import HookWatch
from comity.kernel.live.hooks_after import After
from comity.kernel.live.hooks_before import Before
from comity.kernel.live.hosting import Hosting
from comity.kernel.live.parts import Cause, Errand, Inferring, Origin, Saying
from comity.kernel.live.turn_echoes import Echoes
from comity.kernel.live.turn_taking import Company
from comity.kernel.live.turns import Pace, TurnTaker
from comity.kernel.live.using_tools import Offered, UsingTools
from comity.ports.conversations import ConversationRecords
from comity.ports.models import OnPiece, Piece, Reply, ToolResult, ToolUse
from comity.rules.turns import Bounds
from comity.wire.contents import Content, said, text_of
from comity.wire.inference import Finish, ModelInfo, Usage
from comity.wire.parties import Actor

INFO = ModelInfo("m-1", "test", 100_000, ("tools",))

type Says = Callable[[Inferring], Any]
"""What the model replies, perhaps in a while; what it raises is raised."""


def reply(text: str = "", *uses: ToolUse) -> Reply:
    return Reply(said(text), Finish.END, Usage(10, 2), "m-1", uses)


class Script:
    """An engine that says what it is told to."""

    def __init__(self, says: Says) -> None:
        self._says = says
        self.asked: list[Inferring] = []

    def info(self, server: str = "", feature: str = "", conversation: str = "") -> ModelInfo:
        return INFO

    async def infer(self, asked: Inferring, on_piece: OnPiece | None = None) -> Reply:
        self.asked.append(asked)
        found = self._says(asked)
        answer = found if isinstance(found, Reply) else await found
        if on_piece is not None:
            on_piece(Piece(text_of(answer.content)))
        return answer


@dataclass
class Remembering:
    """Places that remember what was said, each once for a turn, as real ones do."""

    said: dict[tuple[str, str], Content] = field(default_factory=dict[tuple[str, str], Content])
    pieces: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    thoughts: list[str] = field(default_factory=list[str])
    problem: Callable[[Saying], None] = lambda _: None

    def candidates(self) -> Sequence[str]:
        return [place for _, place in self.said]

    def piece(self, saying: Saying, index: int, delta: str) -> None:
        self.pieces.append((saying.place, index, delta))

    async def say(self, saying: Saying, content: Content) -> None:
        self.problem(saying)
        self.said.setdefault((saying.inference, saying.place), content)

    async def think(self, saying: Saying, text: str) -> None:
        self.thoughts.append(text)


class Tools:
    """No tools but one that counts how often it is used."""

    def __init__(self, uses: Callable[[ToolUse], Any] | None = None) -> None:
        self.used: list[ToolUse] = []
        self._uses = uses

    async def offered(self, actor: Actor) -> Offered:
        return Offered((), {})

    async def use(
        self, actor: Actor, offered: Offered, use: ToolUse, awaiting: object
    ) -> ToolResult:
        self.used.append(use)
        if self._uses is not None:
            await self._uses(use)
        return ToolResult(use.id, said(f"used {use.name}"))


@dataclass
class House:
    """One node, or several that have their records and places in common."""

    says: Says = lambda _: reply("words")
    records: ConversationRecords = field(default_factory=MemoryConversations)
    places: Remembering = field(default_factory=Remembering)
    bounds: Bounds = field(default_factory=Bounds)
    tools: Tools = field(default_factory=Tools)
    hosting: Hosting = field(default_factory=Hosting)
    pace: Pace = field(default_factory=lambda: Pace(look=timedelta(milliseconds=20)))

    def __post_init__(self) -> None:
        self.engine = Script(self.says)

    def taker(self) -> TurnTaker:
        watch = HookWatch()
        company = Company(
            self.records,
            Before(self.hosting, watch, self.bounds),
            After(self.hosting, watch, self.bounds),
            cast("UsingTools", self.tools),
            Echoes(),
            lambda text: text.replace("SECRET", "[hidden]"),
            lambda party: Actor(party) if party else None,
            lambda: self.engine,
            lambda: self.places,
            self.bounds,
        )
        return TurnTaker(company, self.hosting.noting, self.pace)


def errand(key: str = "k", conversation: str = "c", *places: str, **cause: Any) -> Errand:
    why = Cause(Origin.PUSH, key, "agent:host", **cause)
    return Errand(why, conversation, said("hello"), say_in=places or ("topic:t",))
