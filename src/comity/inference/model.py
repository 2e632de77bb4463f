"""Data types and protocols of inference: models, prompts, routes, prices and budgets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol

from comity.inference.messages import Content, FinishReason, ModelInfo, Role, TokenUsage
from comity.policy.grants import is_pattern_match
from comity.toolkit.patterns import covers_feature
from comity.toolkit.patterns import covers_feature as feature_covers


@dataclass(frozen=True, slots=True)
class ModelTool:
    """A tool that the model may call."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call by the model. `broken` holds arguments that are not a JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    broken: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call, as the model reads it."""

    id: str
    content: Content
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ConversationStep:
    """A message of a conversation.

    The model's may call tools, and the user's may hold their results.
    """

    role: Role
    content: Content = ()
    uses: tuple[ToolUse, ...] = ()
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelPrompt:
    """The complete input of a model."""

    steps: tuple[ConversationStep, ...]
    system: Content = ()
    tools: tuple[ModelTool, ...] = ()
    max_tokens: int = 4096
    temperature: float | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelCompletion:
    """The reply of a model. With `uses` the model waits for the results of its tool calls."""

    content: Content
    finish: FinishReason
    usage: TokenUsage
    model: str
    uses: tuple[ToolUse, ...] = ()
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class ReplyChunk:
    """A chunk of a streamed reply."""

    text: str
    is_thinking: bool = False


type OnPiece = Callable[[ReplyChunk], None]


class Model(Protocol):
    """A language model behind a provider's API."""

    @property
    def info(self) -> ModelInfo: ...

    async def complete(
        self, prompt: ModelPrompt, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        """Return the whole reply. With `on_chunk` the chunks are passed on as they arrive."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The configuration of a model: its API, its address, its name there and its limits."""

    id: str
    api: str
    model: str
    url: str = ""
    key: str = field(default="", repr=False)
    context_window: int = 128_000
    max_output: int = 4_096
    capabilities: tuple[str, ...] = ()
    vendor: str = ""
    deadline: timedelta = timedelta(minutes=5)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    proxy: str = field(default="", repr=False)
    """The URL of the proxy for requests to the model, if any."""

    @property
    def info(self) -> ModelInfo:
        vendor = self.vendor or self.api
        return ModelInfo(self.model, vendor, self.context_window, self.capabilities)


class ModelFactory(Protocol):
    """The type of the plugins in the group `comity.models`. Each builds models of one `api`."""

    def __call__(self, spec: ModelSpec) -> Model: ...


_EXACT: Final = 10_000


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A rule that assigns a model to requests. An empty field matches any request."""

    model: str
    server: str = ""
    feature: str = ""
    conversation: str = ""
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """The request to route. `tokens` is its approximate size."""

    server: str = ""
    feature: str = ""
    conversation: str = ""
    tokens: int = 0
    hint: str = ""


class ModelChoice(NamedTuple):
    """A model and the reason why it was chosen."""

    model: str
    reason: str


def rank_models(
    routes: Sequence[ModelRoute], default: str, query: RouteQuery, windows: Mapping[str, int]
) -> list[ModelChoice]:
    """Return the matching models, best first. `windows` maps each model to its context window."""
    fitting = [each for each in routes if _fits(each, query) and each.model in windows]
    # Among equally specific routes, the hint decides, and then the order in the settings.
    fitting.sort(key=lambda each: (_weight(each), each.model == query.hint), reverse=True)
    found = [ModelChoice(each.model, _route_reason(each, query)) for each in fitting]
    if default in windows:
        found.append(ModelChoice(default, "default"))
    found.sort(key=lambda each: windows[each.model] < query.tokens)
    return unique_models(found)


def unique_models(found: Iterable[ModelChoice]) -> list[ModelChoice]:
    """Remove all but the first occurrence of each model."""
    first: dict[str, ModelChoice] = {}
    for each in found:
        first.setdefault(each.model, each)
    return list(first.values())


def _fits(route: ModelRoute, query: RouteQuery) -> bool:
    if route.conversation and route.conversation != query.conversation:
        return False
    if route.server and route.server != query.server:
        return False
    if route.feature and not covers_feature(route.feature, query.feature):
        return False
    return route.min_tokens <= query.tokens


def _weight(route: ModelRoute) -> tuple[bool, int, bool, int]:
    named = len(route.feature)
    if route.feature and not route.feature.endswith("*"):
        named = _EXACT
    return bool(route.conversation), named, bool(route.server), route.min_tokens


def _route_reason(route: ModelRoute, query: RouteQuery) -> str:
    said = {
        "conversation": route.conversation,
        "server": route.server,
        "feature": route.feature,
        "at_least_tokens": str(route.min_tokens or ""),
    }
    parts = [f"{name} {value}" for name, value in said.items() if value]
    if query.hint == route.model:
        parts.append("hint")
    return "route: " + (", ".join(parts) or "any")


MILLION: Final = 1_000_000
type OnExceeded = Literal["ask", "refuse"]


class Amount(NamedTuple):
    """A number of tokens, and an amount of money in millionths."""

    tokens: int = 0
    money: int = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(self.tokens + other.tokens, self.money + other.money)

    def minus(self, other: "Amount") -> "Amount":
        return Amount(self.tokens - other.tokens, self.money - other.money)


@dataclass(frozen=True, slots=True)
class Budget:
    """A daily limit. None means no limit. `party` and `feature` may be patterns."""

    principal: str = "*"
    feature: str = "*"
    tokens: int | None = None
    money: int | None = None
    on_exceeded: OnExceeded = "ask"
    # Whether all principals that it covers share one account.
    shared: bool = False

    @property
    def name(self) -> str:
        return f"{self.principal}|{self.feature}"

    def account(self, party: str) -> str:
        return f"{self.name}|{'' if self.shared else party}"


class Price(NamedTuple):
    """The price of a million tokens. None means that it is unknown."""

    input: float | None = None
    output: float | None = None


ZERO_AMOUNT: Final = Amount()
UNPRICED: Final = Price()


def find_budgets(budgets: Iterable[Budget], party: str, feature: str) -> list[Budget]:
    """Return all budgets for a request. Their fixed order prevents deadlocks between holders."""
    found = (
        each
        for each in budgets
        if is_pattern_match(each.principal, party)
        and (each.feature == "*" or feature_covers(each.feature, feature))
    )
    return sorted(found, key=lambda each: each.account(party))


def compute_cost(usage: TokenUsage, price: Price) -> int:
    """Return the cost in millionths. Usage without a known price costs nothing."""
    exact = usage.input * (price.input or 0.0) + usage.output * (price.output or 0.0)
    # The price is per million tokens, so one token costs that many millionths. Fractions round up.
    return -int(-exact // 1)


def amount_of_usage(usage: TokenUsage, price: Price) -> Amount:
    return Amount(usage.input + usage.output, compute_cost(usage, price))


def day_of(now: datetime) -> date:
    return now.astimezone(UTC).date()


def next_day_start(day: date) -> datetime:
    """Return when the next day begins (UTC)."""
    return datetime.combine(day + timedelta(days=1), time(), UTC)


class BudgetLimit(NamedTuple):
    """An account and its limit for one day, with money in millionths. None means no limit."""

    account: str
    tokens: int | None = None
    money: int | None = None


class BudgetAmounts(NamedTuple):
    """A number of tokens, and an amount of money in millionths, in an account."""

    tokens: int = 0
    money: int = 0


class BudgetAccount(NamedTuple):
    """An account on one day: what is spent, what is held, and by how much its limit was raised."""

    account: str
    day: date
    spent: BudgetAmounts = BudgetAmounts()
    held: BudgetAmounts = BudgetAmounts()
    raised: BudgetAmounts = BudgetAmounts()


@dataclass(frozen=True, slots=True)
class SpendRecord:
    """The spending of a principal on a model through a feature set on one day."""

    day: date
    party: str
    feature: str
    model: str
    usage: TokenUsage = field(default_factory=TokenUsage)
    money: int = 0
    requests: int = 0


class BudgetStore(Protocol):
    """Stores budget accounts and spending."""

    async def hold(
        self, day: date, limits: Sequence[BudgetLimit], maximum: BudgetAmounts
    ) -> BudgetAccount | None:
        """Hold an amount in each account.

        Return None, or the first account that has too little left.
        """
        ...

    async def settle(
        self, day: date, accounts: Sequence[str], amounts: BudgetAmounts, spent: SpendRecord
    ) -> None:
        """Replace the held amount by the spent one, and add that to the day's spending."""
        ...

    async def raise_by(self, day: date, account: str, more: BudgetAmounts) -> BudgetAccount:
        """Raise an account's limit for that day, and return the account."""
        ...

    async def accounts(self, day: date) -> Sequence[BudgetAccount]:
        """Return all accounts used on a day, by name."""
        ...

    async def spending_on(self, day: date) -> Sequence[SpendRecord]:
        """Return a day's spending by principal, feature set and model."""
        ...

    async def prune(self, before: date) -> int:
        """Delete the days before that one, and return the number of rows."""
        ...


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A prompt for a model, with its payer, feature set and conversation."""

    prompt: ModelPrompt
    party: str
    inference: str
    server: str = ""
    feature: str = ""
    conversation: str = ""
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])


class InferenceEngine(Protocol):
    """Chooses a model, charges its cost, and asks a fallback if the model fails."""

    def info(self, server: str = "", feature: str = "", conversation: str = "") -> ModelInfo:
        """Return the model that would answer. Raises Unavailable if there is none."""
        ...

    async def infer(
        self, request: InferenceRequest, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        """Ask a model and return its reply. Raises Unavailable, also if a budget is used up."""
        ...
