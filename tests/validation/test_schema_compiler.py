"""Which schemas can be used, among them the ones written to harm whoever compiles them."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.toolkit.worker_process import READY
from comity.validation.schema_compiler import MAX_DEPTH, MOST_BYTES, check_schema
from tests.support.cases import loop_over

pytestmark = pytest.mark.integration


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


def doubled(levels: int, **more: object) -> dict[str, Any]:
    """Each definition refers twice to the next: 2 to the power of `levels` ways to the last."""
    definitions: dict[str, Any] = {str(levels): {}}
    for number in range(levels):
        following = {"$ref": f"#/$defs/{number + 1}"}
        definitions[str(number)] = {"allOf": [following, following], **more}
    return {"$defs": definitions, "$ref": "#/$defs/0"}


FINE: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "an object": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
    "draft 7 as it says": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": [{"type": "string"}],
    },
    "draft 7 without saying so": {"items": [{"type": "string"}]},
    "2020-12 as it says": {"$schema": "https://json-schema.org/draft/2020-12/schema"},
    "the meta-schema itself": {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    "a pattern that backtracks elsewhere": {"type": "string", "pattern": "^(a+)+$"},
    "look-around": {"pattern": r"^(?!\.)(?!.*\.\.)[a-z.]+@[a-z.]+$"},
    "a back-reference": {"pattern": r"^(a)\1$"},
    "a reference to itself": {"$ref": "#"},
    "a tree": {"properties": {"children": {"items": {"$ref": "#"}}}},
    "references in a ring": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "a dynamic reference in a ring": {
        "$dynamicAnchor": "node",
        "properties": {"next": {"$dynamicRef": "#node"}},
    },
    "doubled references": doubled(22),
    "a huge enum": {"enum": list(range(9_000))},
    "a huge number": {"minimum": 10**400},
    "an unknown format and keyword": {"format": "nonsense", "x-mine": [1]},
    "as deep as may be": nested(MAX_DEPTH),
}


@loop_over("name", FINE)
def test_a_good_schema_is_fine(name: str) -> None:
    assert check_schema(FINE[name]) is None


BAD: dict[str, tuple[object, str]] = {
    "a type that is none": ({"type": "int"}, r"\(at /type\)"),
    "one deep inside": ({"properties": {"a": {"type": "strnig"}}}, r"\(at /properties/a/type\)"),
    "required as a truth": ({"properties": {"a": {"required": True}}}, "/properties/a/required"),
    "a pattern that is none": ({"pattern": "("}, "regex"),
    "a pattern of a million": ({"pattern": "(a{1000}){1000}"}, "regex"),
    "multiples of zero": ({"multipleOf": 0}, "multipleOf"),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, "does not exist"),
    "an anchor to nothing": ({"$dynamicRef": "#none"}, "does not exist"),
    "an unknown meta-schema": ({"$schema": "https://example.org/mine"}, "meta-schema"),
    "too deep": (nested(MAX_DEPTH + 1), "nested over 32 deep"),
    "far too deep": (nested(900), "nested over|not JSON"),
    "too long": ({"description": "x" * MOST_BYTES}, "over 65536 bytes"),
    "too many parts": ({"enum": [1] * 10_001}, "parts"),
    "too many references": ({"allOf": [{"$ref": "#"}] * 2_001}, "references"),
    "a list": ([], "not an object"),
    "a truth": (True, "not an object"),
    "a text": ("{}", "not an object"),
    "nothing": (None, "not an object"),
    "not a number": ({"minimum": float("nan")}, "/minimum"),
    "infinity": ({"maximum": float("inf")}, "/maximum"),
    "half a character": ({"title": "\ud800"}, "not JSON"),
    "no JSON at all": ({"default": object()}, "not JSON"),
}


@loop_over("name", BAD)
def test_a_bad_schema_is_refused_with_the_reason(name: str) -> None:
    schema, reason = BAD[name]
    told = check_schema(schema)
    assert told is not None
    assert re.search(reason, told)


@loop_over("schema", [{}, {"type": "string"}, {"type": ["object", "null"]}])
def test_arguments_must_be_an_object(schema: dict[str, Any]) -> None:
    assert check_schema(schema) is None
    assert check_schema(schema, of_arguments=True) == 'it must have "type": "object"'
    assert check_schema({**schema, "type": "object"}, of_arguments=True) is None


@loop_over("keyword", ["$ref", "$dynamicRef", "$schema"])
def test_no_connection_is_made_to_another_document(keyword: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bait:
        bait.setblocking(False)
        address = f"http://127.0.0.1:{bait.getsockname()[1]}/schema.json"
        assert check_schema({keyword: address}) is not None
        # A `$schema` below the top is only a word.
        beneath = check_schema({"$id": address, "items": {keyword: "other.json"}})
        assert (beneath is None) == (keyword == "$schema")
        with pytest.raises(BlockingIOError):
            bait.accept()


def test_no_file_is_read(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"type": "string"}', "utf-8")
    for reference in (other.as_uri(), str(other), f"file:{other}", f"{other.as_uri()}#/type"):
        assert check_schema({"$ref": reference}) is not None


def test_the_reason_is_short_and_printable() -> None:
    told = check_schema({"type": "\x1b[31m\n\u202e" + "x" * 5000})
    assert told is not None
    assert told.isprintable()
    assert len(told) <= 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "$ref", "$id", "pattern", "items", "allOf", "enum", "$defs"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_judged_and_nothing_is_raised(schema: object) -> None:
    told = check_schema(schema)
    assert told is None or told


def test_the_process_answers_line_by_line_and_dies_of_a_bomb() -> None:
    bomb = json.dumps(doubled(40, unevaluatedProperties=False)).encode()
    done = subprocess.run(
        (sys.executable, "-P", "-m", "comity.validation.schema_compiler"),
        input=b'a{"type":"object"}\nr{"type":"int"}\nr' + bomb + b'\nr{"type":"object"}\n',
        capture_output=True,
        timeout=50,
        check=False,
    )
    ready, fine, bad, *rest = done.stdout.splitlines(keepends=True)
    assert ready == READY
    assert fine == b"null\n"
    assert b"is not valid" in bad
    assert rest == []
    assert done.returncode < 0
