"""Runs one turn: hooks, inference, tool calls through the call pipeline, and output."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

from msgspec import Raw

from comity.catalog import discovery_messages
from comity.catalog.discovery_messages import DEFINITIONS, MetaTool
from comity.catalog.toolbelt import ToolbeltService
from comity.errors import ACCESS_DENIED, EXHAUSTED, SERVER_NOT_READY, MalformedMessage, Unavailable
from comity.gateway.pipeline import CallGate
from comity.inference.messages import (
    Content,
    ContentBlock,
    ModelInfo,
    TokenUsage,
    text_of,
    to_text_content,
)
from comity.inference.model import (
    ConversationStep,
    InferenceEngine,
    InferenceRequest,
    ModelCompletion,
    ModelPrompt,
    ModelTool,
    ReplyChunk,
    ToolResult,
    ToolUse,
)
from comity.live.hooks import model as injections
from comity.live.hooks.model import (
    HookContext,
    InjectedContext,
    InjectionRequest,
    safe_label,
    tokens_of,
)
from comity.live.hooks.service import (
    AfterInferenceHooks,
    BeforeInferenceHooks,
    ReviewedOutput,
    TurnDepth,
)
from comity.live.settings import TurnSettings
from comity.live.turns import model
from comity.live.turns import model as turns
from comity.live.turns.model import (
    InjectedText,
    OutputContext,
    OutputSink,
    StoredTurn,
    TurnFacts,
    TurnHookTexts,
    TurnRequest,
    TurnState,
    TurnStore,
    request_of,
)
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import EXTENSION_KEY, VERSION, MgpExtension
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.telemetry.tracing import Headers

CONTINUE_MESSAGE: Final = to_text_content("(Go on.)")
NOTHING_SAID: Final = "(no reply)"
STEP_SEPARATOR: Final = "\n\n"
_SHARED_ORIGINS: Final = ("channel", "topic", "push")
"""The origins with several authors, or with authors who may not instruct the model.

Their messages are labelled with the author.
"""

_UNKNOWN_RESULT: Final = to_text_content(
    "the host ended while this tool was used; its result is unknown"
)


def output_text(steps: Iterable[ConversationStep]) -> str:
    """Return all text of the model in these steps."""
    parts = (text_of(step.content) for step in steps if step.role == "assistant")
    return STEP_SEPARATOR.join(part for part in parts if part)


def step_tokens(step: ConversationStep) -> int:
    """Return an approximate number of tokens."""
    used = sum(len(repr(use.arguments)) // 3 + 16 for use in step.uses)
    brought = sum(tokens_of(result.content) + 8 for result in step.results)
    return tokens_of(step.content) + used + brought


def repair_steps(steps: Sequence[ConversationStep]) -> tuple[ConversationStep, ...]:
    """Complete the steps of an interrupted turn so that a model can continue from them."""
    if not steps or not steps[-1].uses:
        return tuple(steps)
    results = tuple(ToolResult(use.id, _UNKNOWN_RESULT, is_error=True) for use in steps[-1].uses)
    return (*steps, ConversationStep("user", results=results))


def with_delivered_text(
    steps: Sequence[ConversationStep], text: str
) -> tuple[ConversationStep, ...]:
    """Return the steps, with their text replaced if it is not the delivered text."""
    if output_text(steps) == text:
        return tuple(steps)
    silent = [replace(step, content=()) if step.uses else step for step in steps]
    kept = (step for step in silent if step.uses or step.results)
    return (*kept, ConversationStep("assistant", to_text_content(text or NOTHING_SAID)))


def history_steps(turns_before: Sequence[StoredTurn], room: int) -> tuple[ConversationStep, ...]:
    """Return the earlier turns that fit into `room` tokens. `turns_before` has the latest first."""
    told = [_steps_of_turn(each) for each in turns_before]
    number = model.how_many_fit((sum(map(step_tokens, each)) for each in told), room)
    return tuple(step for each in reversed(told[:number]) for step in each)


def build_user_step(turn: StoredTurn, placed: InjectedContext) -> ConversationStep:
    """Return the user's message with the injected context around it."""
    return ConversationStep("user", (*placed.before, *_labelled_content(turn), *placed.after))


def _steps_of_turn(turn: StoredTurn) -> tuple[ConversationStep, ...]:
    return (ConversationStep("user", _labelled_content(turn)), *turn.steps)


def _labelled_content(turn: StoredTurn) -> Content:
    """Return the content to answer, labelled with its author if there may be several."""
    if not turn.content:
        return CONTINUE_MESSAGE
    is_among_others = turn.request_fields.get("origin") in _SHARED_ORIGINS
    author = safe_label(str(turn.request_fields.get("author", ""))) if is_among_others else ""
    return (*to_text_content(f"[{author}]"), *turn.content) if author else turn.content


MOST_FOLLOWED: Final = 1_000
_MIN_CHUNK_CHARACTERS: Final = 60

type Show = Callable[[int, str], None]
"""Called with the index and the text of each chunk."""


class TurnOutput:
    """The output of one turn so far."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self.shown_text = ""
        self.is_over = False
        self.listeners: list[Show] = []
        # Whether the output is streamed before the turn ends.
        self.is_open = True
        self._hide = hide
        self._text = ""
        self._checked_length = 0
        self._chunk_count = 0
        self._wakeup = asyncio.Event()

    def add_chunk(self, chunk: ReplyChunk) -> None:
        if chunk.is_thinking or not self.is_open:
            return
        self._text += chunk.text
        # The interval grows with the text, because each pass redacts all of it.
        if len(self._text) - self._checked_length >= max(
            _MIN_CHUNK_CHARACTERS, len(self._text) // 20
        ):
            self._checked_length = len(self._text)
            self._show(model.select_presentable(self._text, self.shown_text, self._hide))

    def pause(self) -> None:
        """Separate the text before a tool call from the text after it."""
        if self._text:
            self._text += STEP_SEPARATOR

    def finish(self, text: str) -> None:
        """Show the rest of the final output."""
        if text.startswith(self.shown_text):
            self._show(text[len(self.shown_text) :])
        self.end()

    def end(self) -> None:
        self.is_over = True
        self._wakeup.set()

    async def wait_for_more(self, known: int, seconds: float) -> None:
        """Wait until more than `known` characters are shown or the turn ends, up to `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while len(self.shown_text) <= known and not self.is_over:
                    self._wakeup.clear()
                    await self._wakeup.wait()
        except TimeoutError:
            pass

    async def wait_until_over(self) -> None:
        """Wait until the turn has ended, successfully or not."""
        while not self.is_over:
            self._wakeup.clear()
            await self._wakeup.wait()

    def _show(self, delta: str) -> None:
        if not delta:
            return
        self.shown_text += delta
        for show in self.listeners:
            show(self._chunk_count, delta)
        self._chunk_count += 1
        self._wakeup.set()


class TurnOutputs:
    """The outputs of the latest turns of this node, for clients that follow them."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._outputs: dict[str, TurnOutput] = {}

    def open(self, inference: str) -> TurnOutput:
        """Return the output of a turn that this node runs or is about to run."""
        found = self._outputs.get(inference)
        if found is None or found.is_over:
            found = self._outputs[inference] = TurnOutput(self._hide)
        while len(self._outputs) > MOST_FOLLOWED:
            del self._outputs[next(iter(self._outputs))]
        return found

    def get(self, inference: str) -> TurnOutput | None:
        return self._outputs.get(inference)


OWN_TOOLS: Final = (DEFINITIONS[MetaTool.SEARCH], DEFINITIONS[MetaTool.CALL])
"""The meta tools that a model gets if not all tools fit."""

_MAX_PAGES: Final = 1_000
_MGP_NAME: Final[Mapping[str, str]] = {
    MetaTool.SEARCH: discovery_messages.DISCOVER_METHOD,
    MetaTool.REQUEST: discovery_messages.REQUEST_METHOD,
    MetaTool.SESSION: discovery_messages.SESSION_METHOD,
}
_CLIENT_INFO: Final = {"name": "comity-turns", "version": "1"}
_PLAIN_META: Final = {
    protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
    protocol.CLIENT_CAPABILITIES: {},
    protocol.CLIENT_INFO: _CLIENT_INFO,
}
_MGP: Final = {"version": VERSION, "extensions": [MgpExtension.TOOL_DISCOVERY]}
_DISCOVERY_META: Final = {
    **_PLAIN_META,
    protocol.CLIENT_CAPABILITIES: {"extensions": {EXTENSION_KEY: _MGP}},
}
"""The envelope of discovery calls, which announces the tool discovery extension."""

type Awaiting = Callable[[str], AbstractContextManager[None]]
"""Returns a context during which a turn waits for a server."""


class ToolCallEndpoint(Protocol):
    """The endpoint of all servers, by which a turn calls tools."""

    @property
    def call_gate(self) -> CallGate: ...
    async def handle_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call: ...


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that a model gets. `names` maps the names it knows to the tools' own names."""

    tools: tuple[ModelTool, ...]
    names: Mapping[str, str]


class TurnTools:
    """Lists and calls tools for turns."""

    def __init__(
        self, endpoint: ToolCallEndpoint, toolbelt_service: ToolbeltService, settings: TurnSettings
    ) -> None:
        self._endpoint = endpoint
        self._toolbelt_service = toolbelt_service
        self._settings = settings

    async def offered(self, actor: Actor) -> OfferedTools:
        """Return the tools for an actor. Raises Unavailable."""
        definitions = await self._list_definitions(actor)
        if definitions is None:
            definitions = self._toolbelt_service.list_definitions(
                self._toolbelt_service.toolbelt_of_client(actor, None)
            )
        found = [each for each in map(_describe_tool, definitions) if each is not None]
        names = model.tool_names(each.name for each in found)
        tools = (
            ModelTool(name, each.description, each.schema)
            for name, each in zip(names, found, strict=True)
        )
        return OfferedTools(tuple(tools), names)

    async def use(
        self, actor: Actor, offered: OfferedTools, use: ToolUse, awaiting: Awaiting
    ) -> ToolResult:
        """Call a tool and return its result for the model. Errors become results, too."""
        if use.broken:
            return _error_result(
                use, "the arguments are no JSON object; use the tool again with one"
            )
        name, arguments, meta = _resolve_meta_tool(
            offered.names.get(use.name, use.name), use.arguments
        )
        offer = self._endpoint.call_gate.catalog.find_public(EntryKind.TOOL, name)
        try:
            with awaiting("" if offer is None else offer.server):
                params = {"name": name, "arguments": arguments, "_meta": meta}
                answer = await self._request(actor, protocol.CALL_TOOL, params)
        except (Unavailable, MalformedMessage) as error:
            return _error_result(use, str(error))
        result = _result(use, answer)
        if not result.is_error and offer is not None:
            self._add_to_toolbelt(actor, offer)
        return ToolResult(
            use.id,
            model.truncate_content(result.content, self._settings.max_result_chars),
            result.is_error,
        )

    def _add_to_toolbelt(self, actor: Actor, entry: CatalogEntry) -> None:
        """Keep a tool that was called successfully in the actor's tool set."""
        if self._endpoint.call_gate.is_listed(actor, EntryKind.TOOL, entry):
            self._toolbelt_service.load(
                self._toolbelt_service.toolbelt_of_client(actor, None), [entry]
            )

    async def _list_definitions(self, actor: Actor) -> list[bytes] | None:
        """Return the definitions of an actor's tools, or None if they exceed the token limit."""
        found: list[bytes] = []
        left, cursor = self._settings.max_tool_tokens, None
        for _ in range(_MAX_PAGES):
            params: dict[str, object] = {"_meta": _PLAIN_META}
            if cursor is not None:
                params["cursor"] = cursor
            answer = await self._request(actor, protocol.LIST_TOOLS, params)
            members = jsonrpc.decode_members(
                Raw(b"{}") if answer.result is UNSET else answer.result
            )
            page = cast("list[object]", jsonrpc.decode_value(members.get("tools", Raw(b"[]"))))
            listed = [jsonrpc.to_json(each) for each in page]
            left -= sum(map(self._toolbelt_service.token_counter.count, listed))
            if left < 0:
                return None
            found += listed
            cursor = jsonrpc.decode_text(members.get("nextCursor"))
            if cursor is None:
                return found
        return None

    async def _request(self, actor: Actor, method: str, params: Mapping[str, object]) -> Frame:
        """Send a request through the call pipeline and return the answer. Raises Unavailable."""
        client_stream = ClientStream()
        client_stream.actor = actor
        call = await self._endpoint.handle_modern_request(
            jsonrpc.make_request(1, method, params), client_stream, ()
        )
        try:
            last = await _read_last_frame(client_stream)
        except asyncio.CancelledError:
            if not client_stream.is_final:
                call.withdraw(None)
            raise
        if last is None:
            raise Unavailable("the call ended without an answer")
        return jsonrpc.decode_frame(last)


async def _read_last_frame(client_stream: ClientStream) -> bytes | None:
    """Return the last frame of a call and discard the notifications before it."""
    told: list[bytes] = []
    while not client_stream.is_final or client_stream.frames:
        await client_stream.wait()
        client_stream.is_nudged = client_stream.is_suspended = False
        told = client_stream.take() or told
    return told[-1] if told else None


@dataclass(frozen=True, slots=True)
class _ToolDescription:
    name: str
    description: str
    schema: Mapping[str, Any]


def _describe_tool(definition: bytes) -> _ToolDescription | None:
    found = cast("dict[str, Any]", jsonrpc.decode_value(definition))
    name, schema = found.get("name"), found.get("inputSchema")
    if not isinstance(name, str) or not isinstance(schema, dict):
        return None
    described = found.get("description")
    text = described if isinstance(described, str) else ""
    return _ToolDescription(name, text, cast("dict[str, Any]", schema))


def _resolve_meta_tool(
    name: str, arguments: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any], Mapping[str, object]]:
    """Resolve a meta tool to the tool and the envelope that the endpoint expects."""
    if name == MetaTool.CALL and isinstance(arguments.get("name"), str):
        inner = arguments.get("arguments")
        found = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        return arguments["name"], found, _PLAIN_META
    if name in _MGP_NAME:
        return _MGP_NAME[name], arguments, _DISCOVERY_META
    return name, arguments, _PLAIN_META


def _error_result(use: ToolUse, reason: str) -> ToolResult:
    return ToolResult(use.id, to_text_content(reason[:2_000]), is_error=True)


def _result(use: ToolUse, answer: Frame) -> ToolResult:
    error = jsonrpc.error_of(answer)
    if error is not None or answer.result is UNSET:
        return _error_result(use, "there was no answer" if error is None else error.message)
    found = cast("dict[str, Any]", jsonrpc.decode_value(answer.result))
    if found.get("resultType", protocol.COMPLETE_RESULT) != protocol.COMPLETE_RESULT:
        return _error_result(use, "this tool needs more input, which a turn cannot give")
    blocks = found.get("content")
    listed = cast("list[object]", blocks) if isinstance(blocks, list) else []
    content: Content = tuple(map(_block, listed))
    if not content and "structuredContent" in found:
        content = to_text_content(jsonrpc.to_json(found["structuredContent"]).decode())
    return ToolResult(use.id, content or to_text_content("(done)"), found.get("isError") is True)


def _block(value: object) -> ContentBlock:
    """Convert a content block of a tool result. Unknown kinds become text."""
    block = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    kind, text = block.get("type"), block.get("text")
    if kind == "text" and isinstance(text, str):
        return ContentBlock("text", text)
    data, mime = block.get("data"), block.get("mimeType")
    if kind in ("image", "audio") and isinstance(data, str) and isinstance(mime, str):
        return ContentBlock(kind, data=data, mime=mime)
    inside = block.get("resource")
    if isinstance(inside, dict):
        embedded = cast("dict[str, Any]", inside)
        text = embedded.get("text")
        if isinstance(text, str):
            return ContentBlock("text", text)
        block = embedded
    return ContentBlock("text", f"[{kind}: {block.get('uri', '')}]"[:2_000])


WITHHELD: Final = "An answer was withheld: what had to look at it first did not."
NO_MORE_TOOLS: Final = to_text_content(
    "no more tools can be used in this turn; answer with what there is"
)
MAX_SHOWN_INJECTIONS: Final = 32
MAX_SHOWN_INJECTION_LENGTH: Final = 4_000
THINKING: Final = "thinking"
TOOLS: Final = "tools"
NO_TOOLS: Final = OfferedTools((), {})

type Save = Callable[[StoredTurn], Awaitable[None]]
"""Stores the progress of a turn. Raises Unavailable if another node has claimed it."""


@dataclass(slots=True)
class TurnDependencies:
    """The parts that a turn needs. Parts that are built later are looked up on use."""

    store: TurnStore
    before: BeforeInferenceHooks
    after: AfterInferenceHooks
    tools: TurnTools
    turn_depth: TurnDepth
    hide: Callable[[str], str]
    actor_of: Callable[[str], Actor | None]
    engine: Callable[[], InferenceEngine | None]
    output_sink: Callable[[], OutputSink | None]
    settings: TurnSettings
    system: Content = ()


@dataclass(slots=True)
class _ActiveTurn:
    """The state of a turn that is running."""

    turn: StoredTurn
    request: TurnRequest
    actor: Actor
    context: HookContext
    output: TurnOutput
    save: Save
    system: Content
    steps: list[ConversationStep]
    usage: TokenUsage
    model: str = ""
    tools: int = 0
    thinking: str = ""


class TurnRunner:
    """Runs single turns."""

    def __init__(self, dependencies: TurnDependencies) -> None:
        self._dependencies = dependencies

    async def decide(self, turn: StoredTurn, output: TurnOutput, save: Save) -> StoredTurn:
        """Run the hooks, the model and the tools, and return the turn with its output.

        Raises Unavailable and MalformedMessage.
        """
        company, errand = self._dependencies, request_of(turn)
        cause = errand.cause
        if turns.is_too_deep(cause.depth, company.settings):
            raise MalformedMessage("too many turns have brought about each other", EXHAUSTED)
        engine, actor = company.engine(), company.actor_of(cause.party)
        if engine is None:
            raise MalformedMessage("no model is named in the settings", SERVER_NOT_READY)
        if actor is None:
            raise MalformedMessage(f"{cause.party} is disabled", ACCESS_DENIED)
        info = engine.info(conversation=turn.conversation)
        moment = self._hook_context(turn, errand, info)
        output.is_open = not company.after.may_change_output()
        given = await self._gather_injections(moment, cause.depth)
        placed = injections.place_injections(given, secrets.token_hex(8))
        system = (*company.system, *placed.system)
        user = build_user_step(turn, placed)
        past = await self._load_history(turn, info, (system, user.content))
        begun = [*past, user, *repair_steps(turn.steps)]
        under = _ActiveTurn(
            turn, errand, actor, moment, output, save, system, begun, turn.facts.usage
        )
        await self._converse(engine, under, len(past) + 1)
        return await self._decide_output(under, len(past) + 1, given)

    def _hook_context(self, turn: StoredTurn, request: TurnRequest, info: ModelInfo) -> HookContext:
        user = text_of(turn.content) if turn.content else None
        channels = dict(request.cause.channels)
        places = self._dependencies.output_sink()
        if channels and places is not None:
            channels.setdefault("candidates", list(places.candidates()))
        return HookContext(turn.id, turn.conversation, turn.index, user, info, channels)

    async def _gather_injections(
        self, context: HookContext, depth: int
    ) -> Sequence[InjectionRequest]:
        before = self._dependencies.before
        asked_now = (each.server for each in before.servers_to_ask())
        with self._dependencies.turn_depth.awaiting(asked_now, depth):
            return await before.gather(context)

    async def _load_history(
        self, turn: StoredTurn, info: ModelInfo, present: tuple[Content, ...]
    ) -> tuple[ConversationStep, ...]:
        bounds = self._dependencies.settings
        topic = turns.tokens_for_history(info.context_window, bounds, *present)
        if topic <= 0 or turn.index == 0:
            return ()
        before = await self._dependencies.store.history(
            turn.conversation, turn.index, bounds.history_turns
        )
        return history_steps(before, topic)

    async def _converse(self, engine: InferenceEngine, active_turn: _ActiveTurn, own: int) -> None:
        """Let the model answer and call tools until it calls no more."""
        bounds = self._dependencies.settings
        # Some models do not support tools and fail if they get any.
        has_tools = TOOLS in active_turn.context.model.capabilities
        offered = (
            await self._dependencies.tools.offered(active_turn.actor) if has_tools else NO_TOOLS
        )
        while True:
            said_so_far = sum(step.role == "assistant" for step in active_turn.steps[own:])
            may_use = said_so_far < bounds.max_model_calls - 1
            reply = await self._infer(engine, active_turn, offered if may_use else None)
            uses = reply.uses if may_use else ()
            active_turn.steps.append(ConversationStep("assistant", reply.content, uses))
            if not uses:
                return
            active_turn.output.pause()
            await active_turn.save(self._progress(active_turn, own))
            active_turn.steps.append(
                ConversationStep(
                    "user", results=await self._call_tools(active_turn, offered, reply)
                )
            )
            await active_turn.save(self._progress(active_turn, own))

    async def _infer(
        self, engine: InferenceEngine, active_turn: _ActiveTurn, offered: OfferedTools | None
    ) -> ModelCompletion:
        prompt = ModelPrompt(
            tuple(active_turn.steps),
            active_turn.system,
            () if offered is None else offered.tools,
            self._dependencies.settings.max_reply_tokens,
        )
        cause = active_turn.request.cause
        question = InferenceRequest(
            prompt,
            cause.party,
            active_turn.turn.id,
            cause.server,
            cause.feature,
            active_turn.turn.conversation,
        )
        reply = await engine.infer(question, active_turn.output.add_chunk)
        active_turn.usage += reply.usage
        active_turn.model = reply.model
        active_turn.thinking += reply.thinking
        return reply

    async def _call_tools(
        self, active_turn: _ActiveTurn, offered: OfferedTools, reply: ModelCompletion
    ) -> tuple[ToolResult, ...]:
        most, depth = (
            self._dependencies.settings.max_parallel_tools,
            active_turn.request.cause.depth,
        )
        done = await asyncio.gather(
            *(
                self._dependencies.tools.use(
                    active_turn.actor,
                    offered,
                    use,
                    lambda server: self._dependencies.turn_depth.awaiting([server], depth),
                )
                for use in reply.uses[:most]
            )
        )
        active_turn.tools += len(done)
        rest = (ToolResult(use.id, NO_MORE_TOOLS, is_error=True) for use in reply.uses[most:])
        return (*done, *rest)

    def _progress(self, active_turn: _ActiveTurn, own: int) -> StoredTurn:
        facts = replace(active_turn.turn.facts, model=active_turn.model, usage=active_turn.usage)
        return replace(active_turn.turn, steps=tuple(active_turn.steps[own:]), facts=facts)

    async def _decide_output(
        self, active_turn: _ActiveTurn, own: int, given: Sequence[InjectionRequest]
    ) -> StoredTurn:
        steps = active_turn.steps[own:]
        before = output_text(steps)
        looked = await self._review_output(active_turn, before)
        # The text of a rewriting server may contain secrets just as the model's own text.
        text = WITHHELD if looked.withheld_by else self._dependencies.hide(looked.text)
        facts = TurnFacts(
            active_turn.model,
            active_turn.usage,
            tuple(dict.fromkeys(each.server for each in given)),
            tuple(looked.rewrote),
            active_turn.turn.facts.tools + active_turn.tools,
            f"{looked.withheld_by} did not look at it" if looked.withheld_by else "",
            TurnState.WITHHELD if looked.withheld_by else TurnState.DONE,
        )
        # Text that a server rewrote or withheld may still be in the reasoning, which no server
        # reviews.
        is_clean = not looked.withheld_by and not looked.rewrote
        thinking = self._dependencies.hide(active_turn.thinking) if is_clean else ""
        is_rewritten = looked.rewrote and not looked.withheld_by
        hook_texts = TurnHookTexts(
            tuple(map(self._injected_text, given[:MAX_SHOWN_INJECTIONS])),
            turns.compare_texts(before, text) if is_rewritten else (),
        )
        return replace(
            active_turn.turn,
            state=TurnState.DECIDED,
            steps=with_delivered_text(() if looked.withheld_by else steps, text),
            said=to_text_content(text),
            thinking=thinking,
            facts=facts,
            hook_texts=hook_texts,
        )

    def _injected_text(self, request: InjectionRequest) -> InjectedText:
        found = request.injection
        text = self._dependencies.hide(text_of(found.content))
        return InjectedText(
            request.server, found.namespace, found.position, text[:MAX_SHOWN_INJECTION_LENGTH]
        )

    async def _review_output(self, active_turn: _ActiveTurn, text: str) -> ReviewedOutput:
        cause, after = active_turn.request.cause, self._dependencies.after
        asked_now = (each.server for each in after.rewriters())
        with self._dependencies.turn_depth.awaiting(asked_now, cause.depth):
            return await after.review(active_turn.context, text, active_turn.usage)

    async def deliver(self, turn: StoredTurn) -> str:
        """Deliver the output to all targets, and return the failures as text.

        A target that already has the output does not get it again.
        """
        errand, places = request_of(turn), self._dependencies.output_sink()
        problems: list[str] = []
        for place in errand.say_in if turn.said else ():
            if places is None:
                return "there is no target for the reply"
            try:
                await places.deliver(OutputContext(turn.id, turn.conversation, place), turn.said)
            except (Unavailable, MalformedMessage) as error:
                problems.append(f"{place}: {error}")
        if turn.thinking and places is not None:
            await self._show_thinking(turn, places)
        return "; ".join(problems)[:1_000]

    async def _show_thinking(self, turn: StoredTurn, places: OutputSink) -> None:
        with suppress(Unavailable, MalformedMessage):
            await places.show_thinking(
                OutputContext(turn.id, turn.conversation, THINKING), turn.thinking
            )

    def notify_observers(self, turn: StoredTurn) -> None:
        """Send the output to the servers that only observe."""
        engine, errand = self._dependencies.engine(), request_of(turn)
        if engine is None or turn.facts.ends_as is not TurnState.DONE:
            return
        with suppress(Unavailable):
            info = engine.info(conversation=turn.conversation)
            moment = self._hook_context(turn, errand, info)
            text = text_of(turn.said)
            self._dependencies.after.notify_observers(moment, text, turn.facts.usage)
