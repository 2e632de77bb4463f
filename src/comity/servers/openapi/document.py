"""Parsing of an OpenAPI 3 document, JSON or YAML, and its local references.

A document is untrusted. Its bytes, values, nesting and references have limits, and no reference to
another file or host is followed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec

from comity.errors import MalformedMessage

MAX_DOCUMENT_BYTES: Final = 48 * 1024 * 1024
MAX_DOCUMENT_VALUES: Final = 4_000_000
MAX_DEPTH: Final = 200
MAX_REFERENCE_CHAIN: Final = 32
MAX_REFERENCE_LENGTH: Final = 1_000
_VERSION: Final = re.compile(r"3\.([01])(?:\.\d+)?(?:-.*)?")
_NOTHING: Final[Mapping[str, Any]] = {}

type Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class ApiDocument:
    """A parsed document of a supported version."""

    members: Table
    # Whether its schemas are JSON Schema 2020-12, as in OpenAPI 3.1.
    is_31: bool

    def find(self, reference: object) -> object | None:
        """Return the value that a local reference names, or None."""
        if (
            not isinstance(reference, str)
            or not reference.startswith("#/")
            or len(reference) > MAX_REFERENCE_LENGTH
        ):
            return None
        found: object = self.members
        for step in reference[2:].split("/"):
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = cast("dict[str, object]", found).get(name)
            elif isinstance(found, list) and name.isdecimal() and len(name) < 7:
                items = cast("list[object]", found)
                found = items[int(name)] if int(name) < len(items) else None
            else:
                return None
        return found

    def resolve(self, value: object) -> Table:
        """Return the object behind a chain of references. Raises MalformedMessage."""
        for _ in range(MAX_REFERENCE_CHAIN):
            if not isinstance(value, dict):
                raise MalformedMessage("a part of it is no object, or a reference leads nowhere")
            table = cast("dict[str, Any]", value)
            if "$ref" not in table:
                return table
            value = self.find(table["$ref"])
        raise MalformedMessage("its references lead in a circle, or outside of the document")

    def component(self, kind: str) -> Table:
        return as_table(as_table(self.members.get("components")).get(kind))


def as_table(value: object) -> Table:
    """Return an object as it is, and any other value as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else _NOTHING


def as_list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def parse_document(data: bytes) -> ApiDocument:
    """Parse a document. Raises MalformedMessage with a reason for the operator."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise MalformedMessage(f"it has over {MAX_DOCUMENT_BYTES} bytes")
    is_json = data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
    members = _parse_json(data) if is_json else _parse_yaml(data)
    if not isinstance(members, dict):
        raise MalformedMessage("it is no object")
    table = cast("dict[str, Any]", members)
    if "swagger" in table:
        raise MalformedMessage("it is Swagger 2.0; convert it to OpenAPI 3")
    version = _VERSION.fullmatch(as_text(table.get("openapi")))
    if version is None:
        raise MalformedMessage("its `openapi` member names no version 3.0 or 3.1")
    return ApiDocument(table, version[1] == "1")


def _parse_json(data: bytes) -> object:
    # An upper bound that costs nothing: strings with such characters count too.
    if sum(data.count(sign) for sign in (b",", b"{", b"[")) > MAX_DOCUMENT_VALUES:
        raise MalformedMessage(f"it has over {MAX_DOCUMENT_VALUES} values")
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except RecursionError:
        raise MalformedMessage("it is nested too deeply") from None
    except ValueError as error:
        raise MalformedMessage(f"it is no JSON: {error!s:.100}") from None


def _parse_yaml(data: bytes) -> object:
    try:
        # PyYAML is an extra, and most documents are available as JSON.
        import yaml
    except ImportError:
        raise MalformedMessage(
            "it is YAML, which needs PyYAML; install comity[openapi] or give it as JSON"
        ) from None
    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _YamlBuilder(loader_class(data), yaml).build()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, MalformedMessage):
            raise
        reason = " ".join(str(error).split())
        raise MalformedMessage(f"it is no YAML: {reason:.200}") from None


@dataclass(slots=True)
class _OpenValue:
    """A list or object whose values still come."""

    value: dict[str, Any] | list[Any]
    anchor: str | None
    size_before: int
    key: str | None = None


class _YamlBuilder:
    """Builds plain values from YAML events.

    The loader of PyYAML is not used: it expands merge keys without a limit, and recurses for each
    level. Here an alias counts as all the values that it repeats.
    """

    def __init__(self, loader: Any, yaml: Any) -> None:
        self._loader = loader
        self._yaml = yaml
        self._size = 0
        self._open: list[_OpenValue] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._root: object = None

    def build(self) -> object:
        for event in self._events():
            self._on_event(event)
            if self._size > MAX_DOCUMENT_VALUES:
                raise MalformedMessage(f"it has over {MAX_DOCUMENT_VALUES} values")
        return self._root

    def _events(self) -> Iterator[Any]:
        while self._loader.check_event():
            yield self._loader.get_event()

    def _on_event(self, event: Any) -> None:
        yaml = self._yaml
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise MalformedMessage("an alias in it names nothing before it")
            value, size = self._anchors[event.anchor]
            self._size += size
            self._put(value)
        elif isinstance(event, yaml.ScalarEvent):
            self._size += 1
            value = self._scalar(event)
            if event.anchor:
                self._anchors[event.anchor] = (value, 1)
            self._put(value)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._size += 1
            if len(self._open) >= MAX_DEPTH:
                raise MalformedMessage("it is nested too deeply")
            fresh: dict[str, Any] | list[Any] = (
                {} if isinstance(event, yaml.MappingStartEvent) else []
            )
            self._put(fresh)
            self._open.append(_OpenValue(fresh, event.anchor, self._size - 1))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            ended = self._open.pop()
            if ended.anchor:
                # Only now, so that no value can hold itself.
                self._anchors[ended.anchor] = (ended.value, self._size - ended.size_before)

    def _put(self, value: object) -> None:
        if not self._open:
            self._root = value
            return
        top = self._open[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is None:
            if isinstance(value, dict | list):
                raise MalformedMessage("a key in it is no text")
            # Status codes are often written as numbers.
            top.key = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        else:
            top.value[top.key] = value
            top.key = None

    def _scalar(self, event: Any) -> object:
        text: str = event.value
        if event.tag not in (None, "!") or not event.implicit[0]:
            return text
        # Dates stay as they are written, as in JSON.
        kind = self._loader.resolve(self._yaml.ScalarNode, text, (True, False)).rpartition(":")[2]
        if kind == "null":
            return None
        if kind == "bool":
            # YAML 1.1 reads `no` and `on` as booleans. The JSON of a document has these words.
            return {"true": True, "false": False}.get(text.lower(), text)
        if kind in ("int", "float"):
            return _number(text)
        return text


def _number(text: str) -> object:
    """Return a number as JSON writes it, and any other notation as its text."""
    try:
        return msgspec.json.decode(text.encode()) if len(text) < 40 else text
    except ValueError:
        return text
