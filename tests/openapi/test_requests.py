"""Arguments become requests: styles, bodies and credentials, and hostile arguments."""

import json
from typing import Any

import pytest

from comity.errors import MalformedMessage
from comity.servers.openapi.document import parse_document
from comity.servers.openapi.operations import compile_api
from comity.servers.openapi.requests import OperationRequest, write_request
from comity.servers.openapi.security import ApiCredentials, SecurityScheme

Table = dict[str, Any]
SCHEMES: Table = {
    "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "inQuery": {"type": "apiKey", "in": "query", "name": "api_key"},
    "inCookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "basic": {"type": "http", "scheme": "Basic"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "oauth": {"type": "oauth2", "flows": {}},
    "digest": {"type": "http", "scheme": "digest"},
}


def _request(
    operation: Table,
    arguments: Table,
    path: str = "/a",
    auth: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> OperationRequest:
    document: Table = {
        "openapi": "3.0.3",
        "paths": {path: {"post": operation}},
        "components": {"securitySchemes": SCHEMES},
    }
    api = compile_api(parse_document(json.dumps(document).encode()), headers=headers or {})
    (made,) = api.operations.values()
    given = ApiCredentials.of(api.schemes, auth or {}, headers or {})
    return write_request(made, arguments, "/base", given.choose(made.security))


def _parameter(place: str, value: Any, **members: Any) -> OperationRequest:
    each: Table = {"name": "p", "in": place, "schema": {}, **members}
    path = "/a/{p}" if place == "path" else "/a"
    return _request({"parameters": [each]}, {"p": value}, path)


STYLES: list[tuple[str, Table, Any, str]] = [
    ("path", {}, "x y", "/base/a/x%20y"),
    ("path", {}, "a/b?c#d%2f;é", "/base/a/a%2Fb%3Fc%23d%252f%3B%C3%A9"),
    ("path", {}, [1, "b,c"], "/base/a/1,b%2Cc"),
    ("path", {"explode": True}, {"k": "v=w"}, "/base/a/k=v%3Dw"),
    ("path", {"style": "label"}, 5, "/base/a/.5"),
    ("path", {"style": "matrix"}, 5, "/base/a/;p=5"),
    ("query", {}, "a&b=c #", "/base/a?p=a%26b%3Dc%20%23"),
    ("query", {}, True, "/base/a?p=true"),
    ("query", {}, 1.5, "/base/a?p=1.5"),
    ("query", {}, None, "/base/a"),
    ("query", {}, ["a", "b"], "/base/a?p=a&p=b"),
    ("query", {"explode": False}, ["a,", "b"], "/base/a?p=a%2C,b"),
    ("query", {"style": "pipeDelimited", "explode": False}, ["a", "b"], "/base/a?p=a%7Cb"),
    ("query", {"style": "spaceDelimited", "explode": False}, ["a", "b"], "/base/a?p=a%20b"),
    (
        "query",
        {"style": "deepObject"},
        {"a": {"b": 1}, "c": [2]},
        "/base/a?p[a][b]=1&p[c][0]=2",
    ),
    ("query", {"content": {"application/json": {}}}, {"a": 1}, "/base/a?p=%7B%22a%22%3A1%7D"),
]


@pytest.mark.parametrize(
    ("place", "members", "value", "target"),
    STYLES,
)
def test_parameters_are_written_by_their_style(
    place: str, members: Table, value: Any, target: str
) -> None:
    assert _parameter(place, value, **members).target == target


def test_headers_and_cookies_are_written_by_their_style() -> None:
    assert _parameter("header", ["a", 1]).headers == (("p", "a,1"),)
    assert _parameter("header", {"a": 1}, explode=True).headers == (("p", "a=1"),)
    assert _parameter("cookie", "a;b c\r\n").headers == (("Cookie", "p=a%3Bb%20c%0D%0A"),)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("path", each) for each in ("..", ".", "", "a/../b", "..\\b", ["a", ".."], {"a": ""})),
        *(("header", each) for each in ("a\r\nX-Evil: 1", "a\nb", "\x00", "é", "a" * 9_000)),
        ("query", "a" * 20_000),
        ("query", list(range(3_000))),
    ],
)
def test_a_hostile_argument_is_refused(place: str, value: Any) -> None:
    with pytest.raises(MalformedMessage):
        _parameter(place, value)


OTHERS: list[Table] = [
    {"name": "tenant", "in": "query", "schema": {}},
    {"name": "p[fixed]", "in": "query", "schema": {}},
    {"name": "theme", "in": "cookie", "schema": {}},
]


@pytest.mark.parametrize(
    ("place", "member", "style"),
    [
        *(
            ("query", each, "form")
            for each in ("tenant", "Tenant", "ten-ant", "tenant[]", "tenant[x]", "tenant\0")
        ),
        *(("query", each, "form") for each in ("api_key", "API-KEY", "api_key[0]")),
        ("query", "fixed", "deepObject"),
        *(("cookie", each, "form") for each in ("sid", "SID", "theme")),
        *(("cookie", each, "form") for each in ("a=b; sid", "a b", "", "é")),
    ],
)
def test_a_member_of_an_object_gives_no_other_parameter(
    place: str, member: str, style: str
) -> None:
    own: Table = {"name": "p", "in": place, "style": style, "schema": {"type": "object"}}
    with pytest.raises(MalformedMessage, match="p "):
        _request({"parameters": [own, *OTHERS]}, {"p": {member: "x"}, "tenant": "acme"})


def test_other_members_of_an_exploded_object_are_written() -> None:
    for place in ("query", "cookie"):
        own: Table = {"name": "p", "in": place, "schema": {"type": "object"}}
        made = _request({"parameters": [own, *OTHERS]}, {"p": {"a": "b c", "p": 1}})
        written = made.target if place == "query" else made.headers
        assert written in ("/base/a?a=b%20c&p=1", (("Cookie", "a=b%20c; p=1"),))


@pytest.mark.parametrize("style", ["simple", "label", "matrix"])
@pytest.mark.parametrize("explode", [False, True])
@pytest.mark.parametrize("value", [[], {}, [""], {"": ""}])
def test_a_path_value_is_never_empty(style: str, explode: bool, value: Any) -> None:
    with pytest.raises(MalformedMessage, match="empty"):
        _parameter("path", value, style=style, explode=explode)


def _body(kind: str, schema: Table, value: Any, **media: Any) -> OperationRequest:
    content = {kind: {"schema": schema, **media}}
    return _request({"requestBody": {"content": content}}, {"body": value})


@pytest.mark.parametrize(
    ("kind", "media", "value", "body"),
    [
        ("application/json", {}, {"a": [1, "ü"]}, '{"a":[1,"ü"]}'.encode()),
        ("application/x+json", {}, [1], b"[1]"),
        ("*/*", {}, {"a": 1}, b'{"a":1}'),
        ("text/plain", {}, "hello", b"hello"),
        ("application/octet-stream", {}, "aGk=", b"hi"),
        (
            "application/x-www-form-urlencoded",
            {"encoding": {"m": {"style": "deepObject"}, "n": {"explode": False}}},
            {"m": {"a": [{"b": 1}]}, "l": [1, 2], "n": [1, 2], "o": {"x": 1}, "z": None},
            b"m%5Ba%5D%5B0%5D%5Bb%5D=1&l=1&l=2&n=1%2C2&o=%7B%22x%22%3A1%7D",
        ),
    ],
)
def test_a_body_is_written_by_its_media_type(
    kind: str, media: Table, value: Any, body: bytes
) -> None:
    made = _body(kind, {}, value, **media)
    assert made.body == body
    assert dict(made.headers)["Content-Type"] == kind.replace("*/*", "application/json")


def test_a_multipart_body_has_text_json_and_files() -> None:
    schema = {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "name": {"type": "string"},
            'x"\r\ny': {},
            "more": {"type": "object"},
        },
    }
    value = {"file": "aGk=", "name": "n", 'x"\r\ny': "1", "more": {"a": 1}}
    made = _body("multipart/form-data", schema, value)
    boundary = dict(made.headers)["Content-Type"].partition("boundary=")[2].encode()
    parts = made.body.split(b"--" + boundary)
    assert [part.partition(b"\r\n\r\n")[2].rstrip() for part in parts[1:-1]] == [
        *(b"hi", b"n", b"1", b'{"a":1}'),
    ]
    assert b'name="file"; filename="file"' in parts[1]
    assert b'name="x%22%0D%0Ay"' in parts[3]
    for bad in ({"file": "no base64!"}, ["a"]):
        with pytest.raises(MalformedMessage):
            _body("multipart/form-data", schema, bad)


SENT: list[tuple[list[Table], dict[str, str], tuple[str, list[tuple[str, str]]]]] = [
    ([{"key": []}], {"key": "abc"}, ("/base/a", [("X-Key", "abc")])),
    ([{"inQuery": []}], {"inQuery": "a&b"}, ("/base/a?api_key=a%26b", [])),
    ([{"inCookie": []}], {"inCookie": "abc"}, ("/base/a", [("Cookie", "sid=abc")])),
    ([{"basic": []}], {"basic": "u:p"}, ("/base/a", [("Authorization", "Basic dTpw")])),
    ([{"bearer": []}], {"bearer": "t"}, ("/base/a", [("Authorization", "Bearer t")])),
    ([{"oauth": ["x"]}], {"oauth": "t"}, ("/base/a", [("Authorization", "Bearer t")])),
    # The first alternative with all its credentials; none where none is needed.
    (
        [{"key": [], "oauth": []}, {"bearer": []}],
        {"key": "k", "bearer": "t"},
        ("/base/a", [("Authorization", "Bearer t")]),
    ),
    ([], {"key": "abc"}, ("/base/a", [])),
    ([{}, {"key": []}], {"key": "abc"}, ("/base/a", [])),
]


@pytest.mark.parametrize(
    ("security", "auth", "sent"),
    SENT,
)
def test_a_credential_goes_where_its_scheme_says(
    security: list[Table], auth: dict[str, str], sent: tuple[str, list[tuple[str, str]]]
) -> None:
    made = _request({"security": security}, {}, auth=auth)
    assert (made.target, list(made.headers)) == sent


MISSING: list[tuple[list[Table], dict[str, str], str]] = [
    ([{"key": []}], {}, "needs a credential for 'key'; the operator sets it as `auth.key`"),
    ([{"oauth": []}], {}, "needs an OAuth access token for 'oauth'"),
    ([{"digest": []}], {}, "'digest', which Comity cannot send"),
    ([], {"other": "x"}, "`auth` names 'other', and its security schemes are: basic, bearer"),
    ([], {"key": "s3cret\r\nX: 1"}, "`auth.key` is empty or no ASCII text"),
    ([], {"basic": "s3cret"}, "`auth.basic` must be user:password"),
]


@pytest.mark.parametrize(
    ("security", "auth", "reason"),
    MISSING,
)
def test_a_missing_or_broken_credential_is_named_but_not_quoted(
    security: list[Table], auth: dict[str, str], reason: str
) -> None:
    with pytest.raises(MalformedMessage, match=reason) as found:
        _request({"security": security}, {}, auth=auth)
    assert "s3cret" not in str(found.value)


def test_a_caller_cannot_set_a_credential_or_a_header_of_the_operator() -> None:
    names = [("header", each) for each in ("X-Key", "x-tenant", "Authorization", "Host", "Cookie")]
    names += [("query", "api_key"), ("cookie", "sid"), ("query", "free")]
    parameters: list[Table] = [{"name": name, "in": place, "schema": {}} for place, name in names]
    arguments = {name: "evil" for _, name in names}
    made = _request({"parameters": parameters}, arguments, headers={"X-Tenant": "mine"})
    assert (made.target, made.headers) == ("/base/a?free=evil", ())


def test_an_answer_that_repeats_a_credential_is_redacted() -> None:
    given = ApiCredentials.of({}, {}, {"Authorization": "Bearer s3cret-token", "X": "abc"})
    assert given.redact(b'{"h": "Bearer s3cret-token", "t": "s3cret-token abc"}') == (
        b'{"h": "[redacted]", "t": "[redacted] abc"}'
    )
    assert "s3cret" not in repr(given)


def test_only_headers_with_credentials_are_redacted() -> None:
    scheme = SecurityScheme("key", "header", "X-Key")
    headers = {
        "X-GitHub-Api-Version": "2022-11-28",
        "Accept": "application/vnd.github+json",
        "x-key": "secret-1",
        "Cookie": "secret-2",
        "X-Auth-Token": "secret-3",
    }
    given = ApiCredentials.of({"key": scheme}, {}, headers)
    plain = b"2022-11-28T10:00:00Z application/vnd.github+json "
    assert given.redact(plain + b"secret-1 secret-2 secret-3") == (
        plain + b"[redacted] [redacted] [redacted]"
    )
