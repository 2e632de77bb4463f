"""Writes the HTTP request of a tool call: path, query, headers, cookies and body.

Arguments are untrusted. Each value is encoded so that it stays inside its part of the request. It
can neither leave its path segment, nor add a parameter, a header or a cookie.
"""

import base64
import binascii
import re
import secrets
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.servers.openapi.document import as_table
from comity.servers.openapi.operations import ApiBody, ApiOperation, ApiParameter
from comity.servers.openapi.security import SentCredentials

MAX_TARGET_LENGTH: Final = 16 * 1024
MAX_HEADER_LENGTH: Final = 8 * 1024
MAX_PAIRS: Final = 2_000
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_COOKIE_SAFE: Final = "!#$&'()*+-./:<=>?@[]^_`{|}~"
_COOKIE_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_SEPARATORS: Final = re.compile(r"[/\\]")

type Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, repr=False)
class OperationRequest:
    """A request without its origin."""

    method: str
    target: str
    headers: tuple[Pair, ...]
    body: bytes


def write_request(
    operation: ApiOperation,
    arguments: Mapping[str, object],
    base_path: str,
    credentials: SentCredentials,
) -> OperationRequest:
    """Write the request of a call. Raises MalformedMessage with a reason for the caller."""
    path = base_path + "".join(
        part if isinstance(part, str) else _path_value(part, arguments.get(part.argument))
        for part in operation.path
    )
    pairs: list[str] = []
    headers: list[Pair] = []
    cookies: list[str] = []
    for parameter in operation.parameters:
        value = arguments.get(parameter.argument)
        if value is None:
            continue
        if parameter.place == "query":
            pairs += _query(operation, parameter, value)
        elif parameter.place == "header":
            headers.append((parameter.name, _header_value(parameter, value)))
        else:
            cookies += [
                f"{name}={quote(text, safe=_COOKIE_SAFE)}"
                for name, text in _checked_pairs(operation, parameter, value)
            ]
    pairs += [_encode_pair(*pair) for pair in credentials.query]
    cookies += [f"{name}={value}" for name, value in credentials.cookies]
    if len(pairs) > MAX_PAIRS:
        raise MalformedMessage(f"the query has over {MAX_PAIRS} values")
    target = f"{path}?{'&'.join(pairs)}" if pairs else path
    if len(target) > MAX_TARGET_LENGTH:
        raise MalformedMessage(f"the path and query have over {MAX_TARGET_LENGTH} characters")
    if cookies:
        headers.append(("Cookie", "; ".join(cookies)))
    headers += credentials.headers
    body = b""
    if operation.body is not None and "body" in arguments:
        content_type, body = write_body(operation.body, arguments["body"])
        headers.append(("Content-Type", content_type))
    return OperationRequest(operation.method, target, tuple(headers), body)


def scalar_text(value: object) -> str:
    """Return a scalar as text, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return jsonrpc.to_json(value).decode()


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _path_value(parameter: ApiParameter, value: object) -> str:
    """Return the value of a path parameter, which must stay within its place in the path."""
    if value is None:
        raise MalformedMessage(f"{parameter.argument} is missing")
    sign = "=" if parameter.explode else ","
    if parameter.is_json:
        texts = [scalar_text(value)]
    elif isinstance(value, dict):
        table = cast("dict[str, object]", value)
        texts = [text for name, each in table.items() for text in (name, scalar_text(each))]
    else:
        texts = [scalar_text(each) for each in _items(value)]
        sign = ","
    # `DELETE /pets/{ids}` without an id would be `DELETE /pets/`.
    for text in texts or [""]:
        # A server may decode %2F before it resolves `..`, so no part may be a dot segment.
        if not text or any(part in (".", "..") for part in _SEPARATORS.split(text)):
            raise MalformedMessage(
                f"{parameter.argument} must not be empty, nor hold `.` or `..` as a segment"
            )
    encoded = [quote(text, safe="") for text in texts]
    if sign == "=":
        encoded = [f"{encoded[place]}={encoded[place + 1]}" for place in range(0, len(encoded), 2)]
    joined = ",".join(encoded)
    if parameter.style == "label":
        return f".{joined}"
    if parameter.style == "matrix":
        return f";{quote(parameter.name, safe='')}={joined}"
    return joined


def _query(operation: ApiOperation, parameter: ApiParameter, value: object) -> list[str]:
    if parameter.style in ("pipeDelimited", "spaceDelimited") and not parameter.explode:
        sign = "%7C" if parameter.style == "pipeDelimited" else "%20"
        joined = sign.join(quote(scalar_text(each), safe="") for each in _items(value))
        return [f"{quote(parameter.name, safe='')}={joined}"]
    if not parameter.explode and parameter.style == "form" and isinstance(value, list):
        # Each item is encoded alone, so that its own commas do not separate.
        items = cast("list[object]", value)
        joined = ",".join(quote(scalar_text(each), safe="") for each in items)
        return [f"{quote(parameter.name, safe='[]')}={joined}"]
    return [_encode_pair(*pair) for pair in _checked_pairs(operation, parameter, value)]


def _encode_pair(name: str, text: str) -> str:
    return f"{quote(name, safe='[]')}={quote(text, safe='')}"


def _checked_pairs(
    operation: ApiOperation, parameter: ApiParameter, value: object
) -> Iterator[Pair]:
    """Yield the pairs of a parameter. Raises MalformedMessage if one is not its own.

    An exploded object gives its members as parameters. It must not give one that has an argument
    of its own, which a view may have fixed, nor the credential of the operator.
    """
    taken: set[str] | None = None
    for name, text in _pairs(parameter, value):
        if name != parameter.name:
            taken = set(_taken(operation, parameter)) if taken is None else taken
            if parameter.place == "cookie" and not _COOKIE_NAME.fullmatch(name):
                raise MalformedMessage(f"{parameter.argument} has a name that no cookie can have")
            if not _looks_alike(name, parameter.name).isdisjoint(taken):
                raise MalformedMessage(
                    f"{parameter.argument} must not have the member {name!r:.80}, which is another "
                    "parameter of the request"
                )
        yield name, text


def _taken(operation: ApiOperation, parameter: ApiParameter) -> Iterator[str]:
    """Yield the folded names of the other parameters and credentials in the same place."""
    for each in operation.parameters:
        if each.place == parameter.place and each is not parameter:
            yield _folded(each.name)
    for place, name in operation.reserved:
        if place == parameter.place:
            yield _folded(name)


def _looks_alike(name: str, own: str) -> set[str]:
    """Return the folded names that a server may read in a name: some know `a[b]` as a part of a."""
    base = _folded(name.partition("[")[0])
    return {_folded(name)} if base == _folded(own) else {_folded(name), base}


def _folded(name: str) -> str:
    """Return a name without case, separators and hidden characters, which some servers ignore."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(each for each in plain if each.isalnum())


def _pairs(parameter: ApiParameter, value: object) -> list[Pair]:
    """Return the names and values of a parameter by its style."""
    name = parameter.name
    if parameter.is_json:
        return [(name, jsonrpc.to_json(value).decode())]
    if parameter.style == "deepObject":
        return _bounded(deep_pairs(name, value))
    if isinstance(value, list):
        texts = [scalar_text(each) for each in cast("list[object]", value)]
        return [(name, each) for each in texts] if parameter.explode else [(name, ",".join(texts))]
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        if parameter.explode:
            return [(key, scalar_text(each)) for key, each in table.items() if each is not None]
        flat = [part for key, each in table.items() for part in (key, scalar_text(each))]
        return [(name, ",".join(flat))]
    return [(name, scalar_text(value))]


def deep_pairs(name: str, value: object) -> Iterator[Pair]:
    """Yield `name[key][0]` and its text for every scalar inside a value."""
    if isinstance(value, dict):
        for key, each in cast("dict[str, object]", value).items():
            yield from deep_pairs(f"{name}[{key}]", each)
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[object]", value)):
            yield from deep_pairs(f"{name}[{number}]", each)
    elif value is not None:
        yield name, scalar_text(value)


def _bounded(pairs: Iterator[Pair]) -> list[Pair]:
    found: list[Pair] = []
    for pair in pairs:
        found.append(pair)
        if len(found) > MAX_PAIRS:
            raise MalformedMessage(f"a value has over {MAX_PAIRS} parts")
    return found


def _header_value(parameter: ApiParameter, value: object) -> str:
    if parameter.is_json:
        text = jsonrpc.to_json(value).decode()
    elif isinstance(value, dict):
        table = cast("dict[str, object]", value)
        sign = "=" if parameter.explode else ","
        text = ",".join(f"{key}{sign}{scalar_text(each)}" for key, each in table.items())
    else:
        text = ",".join(scalar_text(each) for each in _items(value))
    if not _HEADER_VALUE.fullmatch(text) or len(text) > MAX_HEADER_LENGTH:
        raise MalformedMessage(
            f"{parameter.argument} is a header, which needs visible ASCII characters"
        )
    return text


def write_body(body: ApiBody, value: object) -> tuple[str, bytes]:
    """Return the content type and the bytes of a body. Raises MalformedMessage."""
    if body.kind == "json":
        return body.content_type, jsonrpc.to_json(value)
    if body.kind == "text":
        return body.content_type, scalar_text(value).encode()
    if body.kind == "binary":
        return body.content_type, _decode_base64("body", value)
    if not isinstance(value, dict):
        raise MalformedMessage("the body must be an object")
    fields = cast("dict[str, object]", value)
    if body.kind == "form":
        pairs = _bounded(pair for name, each in fields.items() for pair in _form(body, name, each))
        return body.content_type, urlencode(pairs).encode("ascii")
    return _write_multipart(body, fields)


def _form(body: ApiBody, name: str, value: object) -> Iterator[Pair]:
    encoding = as_table(body.encoding.get(name))
    explode = encoding.get("explode", True) is not False
    if value is None:
        return
    if encoding.get("style") == "deepObject":
        yield from deep_pairs(name, value)
    elif isinstance(value, list):
        texts = [scalar_text(each) for each in cast("list[object]", value)]
        if explode:
            yield from ((name, each) for each in texts)
        else:
            yield name, ",".join(texts)
    else:
        yield name, scalar_text(value)


def _write_multipart(body: ApiBody, fields: Mapping[str, object]) -> tuple[str, bytes]:
    boundary = secrets.token_hex(16)
    parts: list[bytes] = []
    for name, value in fields.items():
        for each in _items(value) if name in body.binary_fields else [value]:
            parts += [] if each is None else [_multipart_part(body, name, each)]
    if len(parts) > MAX_PAIRS:
        raise MalformedMessage(f"the form has over {MAX_PAIRS} parts")
    mark = boundary.encode()
    data = b"".join(b"--%b\r\n%b\r\n" % (mark, part) for part in parts) + b"--%b--\r\n" % mark
    return f"multipart/form-data; boundary={boundary}", data


def _multipart_part(body: ApiBody, name: str, value: Any) -> bytes:
    # As browsers do: only these characters could end the name.
    shown = name.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
    head = f'Content-Disposition: form-data; name="{shown}"'
    if name in body.binary_fields:
        head += f'; filename="{shown}"\r\nContent-Type: application/octet-stream'
        data = _decode_base64(name, value)
    elif isinstance(value, dict | list):
        head += "\r\nContent-Type: application/json"
        data = jsonrpc.to_json(value)
    else:
        data = scalar_text(value).encode()
    return head.encode() + b"\r\n\r\n" + data


def _decode_base64(name: str, value: object) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else b"!", validate=True)
    except (binascii.Error, ValueError):
        raise MalformedMessage(f"{name:.60} must be Base64") from None
