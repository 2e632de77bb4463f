"""Checks of answers to approval requests, callbacks and elicitation forms."""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.approvals.model import ApprovalDecision, ApprovalKind, ApprovalRequest, ApprovalState
from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET, Frame, Id
from comity.mcp.mgp import CALLBACK_REQUEST
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.toolkit.text import escape_unsafe

RESPOND_METHOD: Final = "mgp/callback/respond"
CONFIRM_OPTION: Final = "confirm"
CANCEL_OPTION: Final = "cancel"
"""The response to a confirmation without an approval. (D-28)"""

MAX_CALLBACK_BYTES: Final = 64 * 1024
MAX_ID_LENGTH: Final = 128
MAX_MESSAGE_LENGTH: Final = 4_000
MAX_OPTIONS: Final = 32
MAX_OPTION_LENGTH: Final = 200
MIN_TIMEOUT_MS: Final = 1_000
MAX_TIMEOUT_MS: Final = 3_600_000
DEFAULT_TIMEOUT_MS: Final = 60_000


class CallbackType(StrEnum):
    """The type of a callback. A `notification` wants no answer."""

    CONFIRMATION = "confirmation"
    INPUT = "input"
    SELECTION = "selection"
    NOTIFICATION = "notification"


@dataclass(frozen=True, slots=True)
class CallbackRequest:
    """One callback of a server. `request` is the server's id of the call that it is for. (D-24)"""

    id: str
    request: Id
    type: CallbackType
    message: str
    options: tuple[str, ...] = ()
    timeout: timedelta = timedelta(milliseconds=DEFAULT_TIMEOUT_MS)


class _CallbackRequestParams(Struct):
    callback_id: str
    request_id: int | str
    type: str
    message: str
    options: list[str] | None = None
    timeout_ms: int | None = None


class _CallbackIdParams(Struct):
    callback_id: str


class _CallbackResponseParams(Struct):
    callback_id: str
    response: str | None


_request_decoder: Final = msgspec.json.Decoder(_CallbackRequestParams)
_id_decoder: Final = msgspec.json.Decoder(_CallbackIdParams)
_response_decoder: Final = msgspec.json.Decoder(_CallbackResponseParams)


def decode_callback(params: Raw | UnsetType) -> CallbackRequest:
    """Decode the parameters of a callback. Raises MalformedMessage."""
    if params is UNSET or len(params) > MAX_CALLBACK_BYTES:
        raise _malformed(f"a callback has parameters, of at most {MAX_CALLBACK_BYTES} bytes")
    try:
        found = _request_decoder.decode(params)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(f"a misshapen callback: {error}") from None
    if found.type not in CallbackType:
        raise _malformed(f"no callback is of the type {found.type!r:.40}")
    _check_texts(found)
    wanted = DEFAULT_TIMEOUT_MS if found.timeout_ms is None else found.timeout_ms
    return CallbackRequest(
        found.callback_id,
        found.request_id,
        CallbackType(found.type),
        found.message,
        tuple(found.options or ()),
        timedelta(milliseconds=min(max(wanted, MIN_TIMEOUT_MS), MAX_TIMEOUT_MS)),
    )


def callback_id_in(params: Raw | UnsetType) -> str | None:
    """Return the id of a callback that is malformed otherwise, to refuse it; or None."""
    if params is UNSET or len(params) > MAX_CALLBACK_BYTES:
        return None
    try:
        named = _id_decoder.decode(params).callback_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return named if _is_plain_line(named, MAX_ID_LENGTH) else None


def callback_response_params(callback_id: str, response: object) -> dict[str, object]:
    """Return the parameters of a response to a callback."""
    return {"callback_id": callback_id, "response": response}


def decode_callback_response(params: Raw | UnsetType) -> tuple[str, str | None]:
    """Return the id of the callback and the response. Raises MalformedMessage."""
    if params is UNSET or len(params) > MAX_CALLBACK_BYTES:
        raise _malformed(f"an answer has parameters, of at most {MAX_CALLBACK_BYTES} bytes")
    try:
        found = _response_decoder.decode(params)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(f"a misshapen answer: {error}") from None
    return found.callback_id, found.response


def callback_frame(
    callback: CallbackRequest, id: str, request: Id, options: Sequence[str]
) -> Frame:
    """Return a callback as the client gets it, with the ids that the client knows."""
    params: dict[str, object] = {
        "callback_id": id,
        "request_id": request,
        "type": callback.type,
        "message": callback.message,
    }
    if options:
        params["options"] = list(options)
    if callback.type is not CallbackType.NOTIFICATION:
        params["timeout_ms"] = round(callback.timeout / timedelta(milliseconds=1))
    return jsonrpc.make_notification(CALLBACK_REQUEST, params)


def with_request_id(params: Raw, request: Id) -> Raw:
    """Return the parameters with the client's own id of the call. (D-24)"""
    return jsonrpc.to_raw({**jsonrpc.decode_members(params), "request_id": request})


def _check_texts(params: _CallbackRequestParams) -> None:
    if not _is_plain_line(params.callback_id, MAX_ID_LENGTH):
        raise _malformed(f"a callback_id is a text of 1 to {MAX_ID_LENGTH} plain characters")
    if not 0 < len(params.message) <= MAX_MESSAGE_LENGTH:
        raise _malformed(f"a message has 1 to {MAX_MESSAGE_LENGTH} characters")
    options = params.options or []
    if len(options) > MAX_OPTIONS:
        raise _malformed(f"there are at most {MAX_OPTIONS} options")
    if not all(_is_plain_line(each, MAX_OPTION_LENGTH) for each in options):
        raise _malformed(f"an option has 1 to {MAX_OPTION_LENGTH} plain characters")
    if len({_visible_text(each) for each in options}) < len(options):
        raise _malformed("two options look the same")
    if params.type == CallbackType.SELECTION and not options:
        raise _malformed("a selection has options")


def _is_plain_line(text: str, max_length: int) -> bool:
    """Return whether a text can be shown on one line without changes."""
    return 0 < len(text) <= max_length and text.isprintable() and text.strip() == text


def _visible_text(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _malformed(reason: str) -> MalformedMessage:
    return MalformedMessage(reason, INVALID_PARAMS)


CALLBACK_KINDS: Final[Mapping[CallbackType, ApprovalKind]] = {
    CallbackType.CONFIRMATION: ApprovalKind.CONFIRM,
    CallbackType.INPUT: ApprovalKind.INPUT,
    CallbackType.SELECTION: ApprovalKind.SELECT,
    CallbackType.NOTIFICATION: ApprovalKind.NOTICE,
}
_ANSWERABLE_KINDS: Final = frozenset(
    {ApprovalKind.CONFIRM, ApprovalKind.INPUT, ApprovalKind.SELECT}
)
CHOICE_FIELD: Final = "choice"
TEXT_FIELD: Final = "text"
"""The members of an answer that hold the choice, and the text."""

MAX_OPEN_PER_CALL: Final = 16
"""The limit of open questions of one call."""

MAX_REMEMBERED_CALLBACKS: Final = 256
"""The limit of callbacks of one call that are remembered, with their answers."""

MAX_OPEN_PER_SERVER: Final = 1_000


def callback_options(callback: CallbackRequest) -> tuple[str, ...]:
    """Return the options to choose from. Inputs and notices have none."""
    if callback.type is CallbackType.CONFIRMATION:
        return callback.options or (CONFIRM_OPTION, CANCEL_OPTION)
    return callback.options if callback.type is CallbackType.SELECTION else ()


def unanswered_response(callback_type: CallbackType) -> str | None:
    """Return the response to a callback that received no answer."""
    return CANCEL_OPTION if callback_type is CallbackType.CONFIRMATION else None


def response_to(callback: CallbackRequest, request: ApprovalRequest) -> object:
    """Return the response to a callback whose request has ended."""
    accepted = [each for each in request.answers if each.verdict is ApprovalDecision.ACCEPT]
    if request.state is not ApprovalState.CONSUMED or not accepted:
        return unanswered_response(callback.type)
    content = accepted[-1].content
    if callback.type is CallbackType.INPUT:
        return content.get(TEXT_FIELD)
    return content.get(
        CHOICE_FIELD, CONFIRM_OPTION if callback.type is CallbackType.CONFIRMATION else None
    )


def is_callback(request: ApprovalRequest) -> bool:
    """Return whether a request is for a callback that wants an answer."""
    by_server = str(request.about.get("asked_by", "")).startswith(SERVER_SUBJECT_PREFIX)
    return by_server and request.kind in _ANSWERABLE_KINDS and request.schema is None


def decision_of_response(
    kind: ApprovalKind, response: str | None
) -> tuple[ApprovalDecision, dict[str, object]]:
    """Return the decision and the content that a client's response means."""
    if response is None:
        return ApprovalDecision.CANCEL, {}
    if kind is ApprovalKind.CONFIRM and response == CANCEL_OPTION:
        return ApprovalDecision.DECLINE, {}
    return ApprovalDecision.ACCEPT, {
        TEXT_FIELD if kind is ApprovalKind.INPUT else CHOICE_FIELD: response
    }


def callback_digest(server: str, callback: CallbackRequest, call: str) -> str:
    """Return the digest that binds an answer to this callback of this call."""
    whole = [server, callback.id, call, callback.type, callback.message, callback_options(callback)]
    return hashlib.sha256(msgspec.json.encode(whole)).hexdigest()


def quote_text(text: str) -> str:
    """Quote a server's text on one line, with quotation marks that it cannot close."""
    said = " ".join(escape_unsafe(text).split())
    return "\N{LEFT DOUBLE QUOTATION MARK}" + said.translate(_QUOTE_REPLACEMENTS) + _CLOSING_QUOTE


_CLOSING_QUOTE: Final = "\N{RIGHT DOUBLE QUOTATION MARK}"
_QUOTE_REPLACEMENTS: Final = str.maketrans(
    {"\N{LEFT DOUBLE QUOTATION MARK}": '"', _CLOSING_QUOTE: '"'}
)


MAX_FIELDS: Final = 64
MAX_NAME_LENGTH: Final = 128
MAX_DESCRIPTION_LENGTH: Final = 2_000
MAX_TEXT_LENGTH: Final = 16 * 1024
MAX_CHOICES: Final = 256

type Form = Mapping[str, object]
type Field = Mapping[str, object]

_EMAIL_PATTERN: Final = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}")


def parse_form(schema: object) -> dict[str, object]:
    """Return the form that a schema describes, with safe texts. Raises ValueError."""
    said = _members(schema)
    properties = _members(said.get("properties", {}))
    if said.get("type", "object") != "object" or not 0 < len(properties) <= MAX_FIELDS:
        raise ValueError(f"a form has 1 to {MAX_FIELDS} fields")
    fields = {_checked_name(name): _parse_field(name, each) for name, each in properties.items()}
    required = said.get("required", [])
    if not isinstance(required, list) or any(
        not isinstance(each, str) or each not in fields for each in cast("list[object]", required)
    ):
        raise ValueError("a form requires only fields that it has")
    return {"type": "object", "properties": fields, "required": required}


def form_problem(form: Form, content: Mapping[str, object]) -> str | None:
    """Return why this content does not fit a form, or None if it does."""
    fields = _members(form["properties"])
    strange = [name for name in content if name not in fields]
    if strange:
        return f"there is no field {strange[0]!r:.80}; there are {', '.join(fields):.400}"
    for name in cast("list[str]", form["required"]):
        if name not in content:
            return f"the field {name!r:.80} has to be filled in"
    for name, value in content.items():
        reason = _field_problem(_members(fields[name]), value)
        if reason is not None:
            return f"the field {name!r:.80} {reason}"
    return None


def field_choices(field: Field) -> tuple[str, ...]:
    """Return the choices of a field; none where its text is free."""
    listed = field.get("enum")
    if isinstance(listed, list):
        return tuple(each for each in cast("list[object]", listed) if isinstance(each, str))
    titled = field.get("oneOf", field.get("anyOf"))
    if isinstance(titled, list):
        found = (_members(each).get("const") for each in cast("list[object]", titled))
        return tuple(each for each in found if isinstance(each, str))
    return ()


def _members(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError("a form is an object of objects")  # noqa: TRY004  # one kind for callers
    return cast("dict[str, object]", value)


def _checked_name(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError("a field has a plain name")
    return name


def _parse_field(name: str, schema: object) -> dict[str, object]:
    """Return a field with only the keywords that Comity knows."""
    field = _members(schema)
    if str(field.get("type")) not in _CHECK_BY_TYPE:
        raise ValueError(f"the field {name!r:.80} is no text, number, yes or no, or choice")
    kept = {key: field[key] for key in _KNOWN_KEYWORDS if key in field}
    kept |= {
        key: escape_unsafe(str(field[key]))[:MAX_DESCRIPTION_LENGTH]
        for key in _TEXT_KEYWORDS
        if key in field
    }
    if field["type"] == "array":
        kept["items"] = _parse_items(name, field.get("items"))
    choices = field_choices(field)
    if len(choices) > MAX_CHOICES or not all(map(str.isprintable, choices)):
        raise ValueError(f"the field {name!r:.80} has {MAX_CHOICES} plain choices at most")
    if choices:
        kept["enum"] = list(choices)
    elif not field.keys().isdisjoint(_CHOICE_KEYWORDS):
        raise ValueError(f"the field {name!r:.80} chooses among nothing")
    return kept


def _parse_items(name: str, schema: object) -> dict[str, object]:
    item = _parse_field(name, schema)
    if item["type"] != "string" or "enum" not in item:
        raise ValueError(f"the field {name!r:.80} chooses among nothing")
    return item


_CHOICE_KEYWORDS: Final = ("enum", "oneOf", "anyOf")
_TEXT_KEYWORDS: Final = ("title", "description")
_KNOWN_KEYWORDS: Final = (
    *("type", "format", "default", "minLength", "maxLength"),
    *("minimum", "maximum", "minItems", "maxItems"),
)


def _field_problem(field: Field, value: object) -> str | None:
    return _CHECK_BY_TYPE[str(field["type"])](field, value)


def _text_problem(field: Field, value: object) -> str | None:
    if not isinstance(value, str) or len(value) > MAX_TEXT_LENGTH:
        return f"is a text of at most {MAX_TEXT_LENGTH} characters"
    choices = field_choices(field)
    if choices and value not in choices:
        return f"is one of {', '.join(choices):.400}"
    if (
        not _limit(field, "minLength", 0)
        <= len(value)
        <= _limit(field, "maxLength", MAX_TEXT_LENGTH)
    ):
        return "is too long, or too short"
    kind = field.get("format")
    check = _CHECK_BY_FORMAT.get(kind) if isinstance(kind, str) else None
    return None if check is None or check(value) else f"is a text of the form {kind}"


def _number_problem(field: Field, value: object) -> str | None:
    is_whole = field["type"] == "integer"
    if isinstance(value, bool) or not isinstance(value, int if is_whole else int | float):
        return "is a whole number" if is_whole else "is a number"
    least = _limit(field, "minimum", float("-inf"))
    most = _limit(field, "maximum", float("inf"))
    return None if least <= value <= most else f"is a number from {least} to {most}"


def _boolean_problem(field: Field, value: object) -> str | None:
    return None if isinstance(value, bool) else "is true or false"


def _list_problem(field: Field, value: object) -> str | None:
    choices = field_choices(_members(field["items"]))
    if not isinstance(value, list) or not all(
        each in choices for each in cast("list[object]", value)
    ):
        return f"is a list of some of {', '.join(choices):.400}"
    number = len(cast("list[object]", value))
    if not _limit(field, "minItems", 0) <= number <= _limit(field, "maxItems", MAX_CHOICES):
        return "has too many choices, or too few"
    return None


def _limit(field: Field, name: str, default: float) -> float:
    value = field.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return cast("float", value) if is_number else default


def _is_date(value: str) -> bool:
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_timestamp(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_uri(value: str) -> bool:
    try:
        return bool(urlsplit(value).scheme)
    except ValueError:
        return False


_CHECK_BY_TYPE: Final[Mapping[object, Callable[[Field, object], str | None]]] = {
    "string": _text_problem,
    "number": _number_problem,
    "integer": _number_problem,
    "boolean": _boolean_problem,
    "array": _list_problem,
}
_CHECK_BY_FORMAT: Final[Mapping[str, Callable[[str], bool]]] = {
    "email": lambda value: _EMAIL_PATTERN.fullmatch(value) is not None,
    "uri": _is_uri,
    "date": _is_date,
    "date-time": _is_timestamp,
}


def content_fingerprint(key: bytes, content: Mapping[str, object]) -> str:
    """Return the keyed digest of an answer's content. The key prevents guessing the content.

    (security §5)
    """
    said = msgspec.json.encode(dict(content), order="deterministic")
    return f"hmac-sha256:{hmac.digest(key, said, 'sha256').hex()}"
