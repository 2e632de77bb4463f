"""Compilation of a document into tools: names, schemas, annotations and how to call each one."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from comity.errors import MalformedMessage
from comity.servers.openapi.document import ApiDocument, Table, as_list, as_table, as_text
from comity.servers.openapi.schemas import (
    AssembledSchema,
    Schema,
    SchemaTranslator,
    reduce_schema,
    shorten,
)
from comity.servers.openapi.security import SecurityScheme, read_schemes
from comity.toolkit.patterns import is_glob_match

MAX_OPERATIONS: Final = 5_000
MAX_PARAMETERS: Final = 200
MAX_INPUT_BYTES: Final = 24 * 1024
MAX_OUTPUT_BYTES: Final = 12 * 1024
MAX_TOTAL_BYTES: Final = 48 * 1024 * 1024
MAX_DESCRIPTION_LENGTH: Final = 1_500
MAX_NAME_LENGTH: Final = 64
MAX_PATH_LENGTH: Final = 1_000
MAX_SKIP_REASONS: Final = 20
METHODS: Final = ("get", "head", "options", "put", "post", "patch", "delete")
"""TRACE is left out: it returns the headers of the request, and so the credential."""
_READING: Final = frozenset({"get", "head", "options"})
_PLACES: Final = frozenset({"path", "query", "header", "cookie"})
_DEFAULT_STYLE: Final = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_STYLES: Final = {
    "path": frozenset({"simple", "label", "matrix"}),
    "query": frozenset({"form", "deepObject", "pipeDelimited", "spaceDelimited"}),
    "header": frozenset({"simple"}),
    "cookie": frozenset({"form"}),
}
# OpenAPI ignores the first three. Comity sets the others itself.
_RESERVED_HEADERS: Final = frozenset(
    {
        *("accept", "content-type", "authorization", "connection", "content-length", "expect"),
        *("host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "cookie", "user-agent"),
    }
)
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_COOKIE_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9-]+")
_UNFIT_ARGUMENT: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_FIELD: Final = re.compile(r"\{([^{}]+)\}")
_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
_REDUCED_TEXT: Final = (
    "Deeper parts of its body are not described here, because they are too large."
)

type Place = Literal["path", "query", "header", "cookie"]
type BodyKind = Literal["json", "form", "multipart", "text", "binary"]


@dataclass(frozen=True, slots=True)
class ApiParameter:
    """One parameter, and the argument of the tool that gives its value."""

    argument: str
    name: str
    place: Place
    style: str
    explode: bool
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class ApiBody:
    """The body of a request. `encoding` says how each field of a form is written."""

    kind: BodyKind
    content_type: str
    encoding: Table = field(default_factory=dict[str, Any])
    binary_fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation: how its tool is described, and how its request is made."""

    tool: str
    method: str
    # The parts of the path: text that is already encoded, and parameters.
    path: tuple[str | ApiParameter, ...]
    parameters: tuple[ApiParameter, ...]
    body: ApiBody | None
    # The alternatives of credentials, each a set of schemes; empty if none is needed.
    security: tuple[tuple[str, ...], ...]
    has_output_schema: bool
    definition: bytes
    # The places and names of credentials, which no argument may give.
    reserved: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class CompiledApi:
    """All tools of a document, the security schemes that they use, and the default URL."""

    title: str
    version: str
    operations: dict[str, ApiOperation]
    schemes: dict[str, SecurityScheme]
    url: str
    skipped: tuple[str, ...]
    skipped_count: int


def compile_api(
    document: ApiDocument,
    selection: Sequence[str] = (),
    source_url: str = "",
    headers: Iterable[str] = (),
) -> CompiledApi:
    """Compile a document. Raises MalformedMessage if it is unusable as a whole.

    `headers` are names that the operator sets, so no tool has an argument for them.
    """
    return _ApiCompiler(document, selection, source_url, headers).compile()


class _ApiCompiler:
    """Compiles one document. An operation that is unusable alone is skipped with its reason."""

    def __init__(
        self,
        document: ApiDocument,
        selection: Sequence[str],
        source_url: str,
        headers: Iterable[str],
    ) -> None:
        self._document = document
        self._selection = OperationSelection(selection)
        self._url = default_url(document, source_url)
        self._requests = SchemaTranslator(document, is_request=True)
        self._responses = SchemaTranslator(document, is_request=False)
        self._schemes = read_schemes(document)
        # A caller must not replace a credential.
        self._reserved = frozenset(
            {
                *(("header", name.lower()) for name in headers),
                *((each.place, each.name.lower()) for each in self._schemes.values()),
            }
        )
        self._names: set[str] = set()
        self._skipped: list[str] = []
        self._skipped_count = 0

    def compile(self) -> CompiledApi:
        found: dict[str, ApiOperation] = {}
        size = 0
        for method, path, item, operation in self._selected():
            try:
                made = self._compile_operation(method, path, item, operation)
            except MalformedMessage as error:
                self._skip(f"{method.upper()} {path:.100}: {error}")
                continue
            found[made.tool] = made
            size += len(made.definition)
            if len(found) > MAX_OPERATIONS:
                raise MalformedMessage(
                    f"it has over {MAX_OPERATIONS} operations; choose some by `operations`"
                )
            if size > MAX_TOTAL_BYTES:
                raise MalformedMessage(
                    f"its tools have over {MAX_TOTAL_BYTES} bytes; choose some by `operations`"
                )
        for pattern in self._selection.unused():
            raise MalformedMessage(f"`operations` has {pattern!r:.100}, which matches none of it")
        if not found:
            raise MalformedMessage(
                "it has no usable operation" + "".join(f"; {each}" for each in self._skipped[:1])
            )
        info = as_table(self._document.members.get("info"))
        return CompiledApi(
            shorten(as_text(info.get("title")), 100) or "OpenAPI",
            shorten(as_text(info.get("version")), 60) or "unknown",
            found,
            self._schemes,
            self._url,
            tuple(self._skipped),
            self._skipped_count,
        )

    def _skip(self, reason: str) -> None:
        self._skipped_count += 1
        if len(self._skipped) < MAX_SKIP_REASONS:
            self._skipped.append(reason)

    def _selected(self) -> Iterator[tuple[str, str, Table, Table]]:
        paths = self._document.members.get("paths")
        for path, item in as_table(paths).items():
            try:
                table = self._document.resolve(item)
            except MalformedMessage as error:
                self._skip(f"{path:.100}: {error}")
                continue
            for method in METHODS:
                operation = as_table(table.get(method))
                is_there = isinstance(table.get(method), dict)
                if is_there and self._selection.selects(method, path, operation):
                    yield method, path, table, operation

    def _compile_operation(
        self, method: str, path: str, item: Table, operation: Table
    ) -> ApiOperation:
        self._check_servers(item, operation)
        properties: dict[str, Schema] = {}
        required: list[str] = []
        references: dict[str, None] = {}
        parameters = self._parameters(item, operation, properties, required, references)
        parts = _path_parts(path, parameters)
        body, is_body_reduced = self._body(method, operation, properties, required, references)
        root: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            root["required"] = required
        inputs = self._requests.assemble(root, references, MAX_INPUT_BYTES)
        outputs = self._output_schema(operation)
        name = self._tool_name(method, path, as_text(operation.get("operationId")))
        definition: dict[str, Any] = {
            "name": name,
            "description": _describe(
                method, path, operation, is_reduced=inputs.is_reduced or is_body_reduced
            ),
            "inputSchema": inputs.schema,
            "annotations": annotations_of(method),
        }
        if outputs is not None:
            definition["outputSchema"] = outputs
        return ApiOperation(
            name,
            method.upper(),
            parts,
            tuple(each for each in parameters if each.place != "path"),
            body,
            self._security(operation),
            outputs is not None,
            msgspec.json.encode(definition),
            self._reserved,
        )

    def _check_servers(self, item: Table, operation: Table) -> None:
        """Refuse an operation at another host: credentials only go to one origin."""
        own = as_list(operation.get("servers")) or as_list(item.get("servers"))
        if not own:
            return
        named, mine = _origin(expand_server(own[0], self._url)), _origin(self._url)
        # A document without a server of its own leaves it to the operator where the API is.
        if mine[1] and named[1] and named != mine:
            raise MalformedMessage("it is served by another host than the document")

    def _parameters(
        self,
        item: Table,
        operation: Table,
        properties: dict[str, Schema],
        required: list[str],
        references: dict[str, None],
    ) -> list[ApiParameter]:
        declared: dict[tuple[str, str], Table] = {}
        for each in (*as_list(item.get("parameters")), *as_list(operation.get("parameters"))):
            table = self._document.resolve(each)
            name, place = as_text(table.get("name")), as_text(table.get("in"))
            if place in _PLACES and name and len(name) <= 200:
                declared[name, place] = table
        if len(declared) > MAX_PARAMETERS:
            raise MalformedMessage(f"it has over {MAX_PARAMETERS} parameters")
        found: list[ApiParameter] = []
        for (name, place), table in declared.items():
            if _is_unusable(name, place) or (place, name.lower()) in self._reserved:
                continue
            parameter, schema = self._parameter(name, place, table, properties, references)
            properties[parameter.argument] = schema
            if place == "path" or table.get("required") is True:
                required.append(parameter.argument)
            found.append(parameter)
        return found

    def _parameter(
        self,
        name: str,
        place: Any,
        table: Table,
        properties: dict[str, Schema],
        references: dict[str, None],
    ) -> tuple[ApiParameter, Schema]:
        content = as_table(table.get("content"))
        holder = as_table(next(iter(content.values()), None)) if content else table
        translated = self._requests.translate(holder.get("schema", {}))
        schema = translated.schema
        if translated.size > MAX_INPUT_BYTES // 4:
            schema = reduce_schema(schema)
        else:
            references |= dict.fromkeys(translated.references)
        text = as_text(table.get("description"))
        if text and "description" not in schema:
            schema = {**schema, "description": shorten(text, 400)}
        style = as_text(table.get("style")) or _DEFAULT_STYLE[place]
        if style not in _STYLES[place]:
            style = _DEFAULT_STYLE[place]
        explode = table.get("explode")
        return ApiParameter(
            _argument_name(name, place, properties),
            name,
            place,
            style,
            explode if isinstance(explode, bool) else style in ("form", "deepObject"),
            bool(content),
        ), schema

    def _body(
        self,
        method: str,
        operation: Table,
        properties: dict[str, Schema],
        required: list[str],
        references: dict[str, None],
    ) -> tuple[ApiBody | None, bool]:
        if "requestBody" not in operation or method in ("get", "head"):
            return None, False
        request = self._document.resolve(operation["requestBody"])
        chosen = _choose_content(as_table(request.get("content")))
        if chosen is None:
            return None, False
        media_type, kind, media = chosen
        translated = self._requests.translate(media.get("schema", {}))
        schema, is_reduced = translated.schema, translated.size > MAX_INPUT_BYTES // 2
        if is_reduced:
            schema = reduce_schema(schema)
        else:
            references |= dict.fromkeys(translated.references)
        binary: frozenset[str] = frozenset()
        if kind == "multipart":
            binary = frozenset(_binary_fields(self._document, media.get("schema")))
        elif kind == "binary":
            schema = {"type": "string", "contentEncoding": "base64", "description": "Base64."}
        elif kind == "text":
            schema = {"type": "string", **schema}
        properties["body"] = schema
        if request.get("required") is True:
            required.append("body")
        return ApiBody(kind, media_type, as_table(media.get("encoding")), binary), is_reduced

    def _output_schema(self, operation: Table) -> Schema | None:
        """Return the schema of the result, if every success returns the same kind of object."""
        responses = as_table(operation.get("responses"))
        successes = [each for code, each in responses.items() if code.startswith("2")]
        if len(successes) != 1:
            return None
        try:
            content = as_table(self._document.resolve(successes[0]).get("content"))
            chosen = _choose_content(content)
            if chosen is None or chosen[1] != "json" or len(content) > 1:
                return None
            schema = chosen[2].get("schema")
            if as_table(self._document.resolve(schema)).get("type") != "object":
                return None
        except MalformedMessage:
            return None
        translated = self._responses.translate(schema)
        if translated.size > MAX_OUTPUT_BYTES:
            return None
        # MCP requires an object at the root, which a reference alone does not state.
        root = {**translated.schema, "type": "object"}
        made: AssembledSchema = self._responses.assemble(
            root, translated.references, MAX_OUTPUT_BYTES
        )
        return made.schema

    def _security(self, operation: Table) -> tuple[tuple[str, ...], ...]:
        said = operation.get("security", self._document.members.get("security"))
        choices = [as_table(each) for each in as_list(said)]
        if not choices or any(not each for each in choices):
            return ()
        return tuple(tuple(each) for each in choices[:32])

    def _tool_name(self, method: str, path: str, operation_id: str) -> str:
        base = _clean_name(operation_id) or name_by_path(method, path)
        base = base if len(base) <= MAX_NAME_LENGTH else _with_digest(base)
        name, number = base, 2
        while name in self._names:
            name = f"{base[: MAX_NAME_LENGTH - 6]}_{number}"
            number += 1
        self._names.add(name)
        return name


class OperationSelection:
    """The operations that an operator chose, by method and path, by id or by tag.

    A pattern with a leading `!` excludes. Without a pattern that includes, all are included.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._included = [each for each in patterns if not each.startswith("!")]
        self._excluded = [each[1:] for each in patterns if each.startswith("!")]
        self._unused = dict.fromkeys(patterns)

    def selects(self, method: str, path: str, operation: Table) -> bool:
        names = [as_text(operation.get("operationId"))]
        names += [tag for tag in as_list(operation.get("tags"))[:32] if isinstance(tag, str)]
        included = [each for each in self._included if _matches(each, method, path, names)]
        excluded = [each for each in self._excluded if _matches(each, method, path, names)]
        for each in included:
            self._unused.pop(each, None)
        for each in excluded:
            self._unused.pop(f"!{each}", None)
        return (bool(included) or not self._included) and not excluded

    def unused(self) -> list[str]:
        return list(self._unused)


def _matches(pattern: str, method: str, path: str, names: Iterable[str]) -> bool:
    verb, space, place = pattern.partition(" ")
    if space and (verb == "*" or verb.isupper()):
        return verb in ("*", method.upper()) and _matches_path(place.strip(), path)
    if pattern.startswith("/"):
        return _matches_path(pattern, path)
    return any(is_glob_match(pattern, name[:200]) for name in names)


def _matches_path(pattern: str, path: str) -> bool:
    """Match a path. A trailing `*` covers everything below, as people expect of a prefix."""
    whole = f"{pattern}*" if pattern.endswith("/*") or pattern == "*" else pattern
    return is_glob_match(whole, path[:MAX_PATH_LENGTH])


def annotations_of(method: str) -> dict[str, bool]:
    """Return the annotations that follow from an HTTP method. (RFC 9110 §9.2)"""
    if method in _READING:
        return {"readOnlyHint": True, "openWorldHint": True}
    return {
        "readOnlyHint": False,
        "destructiveHint": method == "delete",
        "idempotentHint": method in ("put", "delete"),
        "openWorldHint": True,
    }


def name_by_path(method: str, path: str) -> str:
    """Return the name of an operation without an id, as `get_repos_by_owner`."""
    words = [method]
    for segment in path.split("/"):
        fields = _FIELD.findall(segment)
        if fields:
            words += ["by", *fields]
        elif segment:
            words.append(segment)
    return _clean_name("_".join(words))


def _clean_name(text: str) -> str:
    return _UNFIT.sub("_", text[:500]).strip("_-")


def _with_digest(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME_LENGTH - 9].rstrip('_-')}_{digest}"


def _argument_name(name: str, place: str, taken: Iterable[str]) -> str:
    """Return a name that every client accepts. `body` is kept for the body of the request."""
    plain = _UNFIT_ARGUMENT.sub("_", name).strip("_")[:48] or place
    found, number = plain, 2
    if plain in taken or plain == "body":
        plain = found = f"{plain}_{place}"
    while found in taken:
        found, number = f"{plain}_{number}", number + 1
    return found


def _is_unusable(name: str, place: str) -> bool:
    if place == "header":
        return not _TOKEN.fullmatch(name) or name.lower() in _RESERVED_HEADERS
    return place == "cookie" and not _COOKIE_NAME.fullmatch(name)


def _path_parts(path: str, parameters: Iterable[ApiParameter]) -> tuple[str | ApiParameter, ...]:
    """Return the path as encoded text and parameters. Raises MalformedMessage."""
    if not path.startswith("/") or len(path) > MAX_PATH_LENGTH:
        raise MalformedMessage("its path does not begin with /, or is too long")
    by_name = {each.name: each for each in parameters if each.place == "path"}
    parts: list[str | ApiParameter] = []
    for number, piece in enumerate(_FIELD.split(path)):
        if number % 2 == 0:
            if re.search(r"[{}?#\\\x00-\x20]", piece):
                raise MalformedMessage("its path holds characters that no path can have")
            if piece:
                parts.append(quote(piece, safe="/%:@!$&'()*+,;=~-._"))
        elif piece in by_name:
            parts.append(by_name[piece])
        else:
            raise MalformedMessage(f"its path has {{{piece:.60}}}, which is no parameter of it")
    if any(segment in (".", "..") for segment in path.lower().replace("%2e", ".").split("/")):
        raise MalformedMessage("its path leads to a parent folder")
    return tuple(parts)


def _describe(method: str, path: str, operation: Table, *, is_reduced: bool) -> str:
    summary = shorten(as_text(operation.get("summary")), 300)
    text = as_text(operation.get("description")).strip()
    lines = ["Deprecated."] if operation.get("deprecated") is True else []
    lines += [each for each in (summary, "" if text == summary else text) if each]
    shown = shorten("\n\n".join(lines), MAX_DESCRIPTION_LENGTH)
    notes = [f"{method.upper()} {path}", *([_REDUCED_TEXT] if is_reduced else [])]
    return "\n\n".join(each for each in (shown, *notes) if each)


_RANK_BY_MEDIA_TYPE: Final[Mapping[str, tuple[int, BodyKind]]] = {
    "application/json": (0, "json"),
    "application/merge-patch+json": (1, "json"),
    "*/*": (3, "json"),
    "application/x-www-form-urlencoded": (4, "form"),
    "multipart/form-data": (5, "multipart"),
}


def _content_rank(media_type: str) -> tuple[int, BodyKind]:
    """Return how much Comity prefers a media type, lowest first, and how it writes it."""
    plain = media_type.partition(";")[0].strip().lower()
    if plain in _RANK_BY_MEDIA_TYPE:
        return _RANK_BY_MEDIA_TYPE[plain]
    if plain.endswith("+json"):
        return 2, "json"
    return (6, "text") if plain.startswith("text/") else (7, "binary")


_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+*-]+/[A-Za-z0-9!#$&^_.+*-]+(;[ -~]*)?")


def _choose_content(content: Table) -> tuple[str, BodyKind, Table] | None:
    """Return the media type that Comity sends or expects, of those that the document lists."""
    usable = [name for name in content if len(name) <= 200 and _MEDIA_TYPE.fullmatch(name)]
    if not usable:
        return None
    chosen = min(usable, key=_content_rank)
    kind = _content_rank(chosen)[1]
    sent = "application/json" if chosen.startswith("*/*") else chosen
    return sent.replace("*", "octet-stream"), kind, as_table(content[chosen])


def _binary_fields(document: ApiDocument, schema: object) -> Iterator[str]:
    """Yield the fields of a form whose values are files, which arguments carry as Base64."""
    try:
        members = as_table(document.resolve(schema).get("properties"))
    except MalformedMessage:
        return
    for name, each in members.items():
        table = as_table(each)
        inner = as_table(table.get("items")) or table
        if as_text(inner.get("format")) == "binary" or (
            "contentMediaType" in inner and "contentEncoding" not in inner
        ):
            yield name


def default_url(document: ApiDocument, source_url: str) -> str:
    """Return the first server of a document with its variables, or an empty text."""
    servers = as_list(document.members.get("servers"))
    return (
        expand_server(servers[0], source_url)
        if servers
        else source_url and urljoin(source_url, "/")
    )


def expand_server(server: object, source_url: str) -> str:
    table = as_table(server)
    variables = as_table(table.get("variables"))

    def value(match: re.Match[str]) -> str:
        said = as_table(variables.get(match[1])).get("default")
        return said if isinstance(said, str) else ""

    url = _VARIABLE.sub(value, as_text(table.get("url"))[:MAX_PATH_LENGTH])
    if url.startswith("//") and not source_url:
        url = f"https:{url}"
    try:
        return urljoin(source_url, url) if source_url else url
    except ValueError:
        return ""


def _origin(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc.lower()
