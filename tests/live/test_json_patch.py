"""Patches do what RFC 6902 says, whole or not at all, and cost no more than they may."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comity.errors import MalformedMessage
from comity.live.state.json_patch import MAX_DEPTH, JsonPatches
from tests.pace import here
from tests.support.cases import loop_over

MOST = 64 * 1024


def patched(document: object, *operations: Any, most: int = MOST) -> object:
    patch = msgspec.json.encode(operations)
    return msgspec.json.decode(JsonPatches().apply(msgspec.json.encode(document), [patch], most))


def fails(document: object, *operations: Any, most: int = MOST) -> str:
    with pytest.raises(MalformedMessage, match="the patch fails") as caught:
        patched(document, *operations, most=most)
    return str(caught.value)


def op(name: str, path: str, value: object = ..., **more: str) -> dict[str, object]:
    said: dict[str, object] = {"op": name, "path": path}
    if value is not ...:
        said["value"] = value
    if "source" in more:
        said["from"] = more["source"]
    return said


# Appendix A of RFC 6902, with its numbers.
@loop_over(
    ("document", "operation", "expected"),
    [
        ({"foo": "bar"}, op("add", "/baz", "qux"), {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, op("add", "/foo/1", "qux"), {"foo": ["bar", "qux", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, op("remove", "/baz"), {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, op("remove", "/foo/1"), {"foo": ["bar", "baz"]}),
        ({"baz": "qux"}, op("replace", "/baz", "boo"), {"baz": "boo"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            op("move", "/qux/thud", source="/foo/waldo"),
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        (
            {"foo": ["all", "grass", "cows", "eat"]},
            op("move", "/foo/3", source="/foo/1"),
            {"foo": ["all", "cows", "eat", "grass"]},
        ),
        ({"foo": "bar"}, op("add", "/child", {"a": {}}), {"foo": "bar", "child": {"a": {}}}),
        ({"foo": "bar"}, {**op("add", "/baz", "qux"), "xyz": 123}, {"foo": "bar", "baz": "qux"}),
        ({"/": 9, "~1": 10}, op("test", "/~01", 10), {"/": 9, "~1": 10}),
        ({"foo": ["bar"]}, op("add", "/foo/-", ["abc"]), {"foo": ["bar", ["abc"]]}),
        ({"foo": 1}, op("add", "", [7]), [7]),
        ({"foo": None}, op("test", "/foo", None), {"foo": None}),
        ({"foo": 1}, op("test", "/foo", 1.0), {"foo": 1}),
    ],
)
def test_an_operation_does_what_the_document_says(
    document: object, operation: object, expected: object
) -> None:
    assert patched(document, operation) == expected


@loop_over(
    ("document", "operation"),
    [
        ({"baz": "qux"}, op("test", "/baz", "bar")),
        ({"foo": "bar"}, op("add", "/baz/bat", "qux")),
        ({"/": 9, "~1": 10}, op("test", "/~01", "10")),
        ({"a": 1}, op("test", "/a", True)),
        ({"a": 1}, op("remove", "/b")),
        ({"a": 1}, op("remove", "")),
        ({"a": 1}, op("replace", "/b", 1)),
        ({"a": 1}, op("add", "/b")),
        ({"a": 1}, op("add", "b", 1)),
        ({"a": []}, op("add", "/a/1", 1)),
        ({"a": []}, op("add", "/a/01", 1)),
        ({"a": []}, op("add", "/a/-1", 1)),
        ({"a": []}, op("add", "/a/" + "9" * 4000, 1)),
        ({"a": "text"}, op("test", "/a/0", "t")),
        ({"a": "text"}, op("add", "/a/0", "t")),
        ({"a": {}}, op("move", "/a/b", source="/a")),
        ({"a": {}}, op("copy", "/b", source="/c")),
        ({"a": {}}, op("copy", "/b")),
        ({"a": {}}, {"op": "copy", "path": "/b", "from": 7}),
        ({"a": "x"}, op("append", "/a", "y")),
        ({"a": "x"}, {"op": ["add"], "path": "/b", "value": 1}),
        ({"a": "x"}, {"op": "add", "path": 7, "value": 1}),
        ({"a": "x"}, {"path": "/a"}),
        ({"a": "x"}, 7),
        ({"a": "x"}, op("add", "/a" * (MAX_DEPTH + 1), 1)),
        ({"a": "x"}, op("add", "/" + "a" * 5000, 1)),
        ({"a": "x"}, op("add", "/~2", 1)),
    ],
)
def test_an_operation_that_does_not_fit_fails(document: object, operation: object) -> None:
    fails(document, operation)


@pytest.mark.parametrize("patch", [b"{}", b"7", b"null", b'"x"', b'[{"op":"add","op":"add"}]'])
def test_what_is_no_patch_fails(patch: bytes) -> None:
    with pytest.raises(MalformedMessage):
        JsonPatches().apply(b"{}", [patch], MOST)


def test_patches_are_applied_one_after_the_other() -> None:
    patches = [msgspec.json.encode([op("add", f"/{name}", name)]) for name in "abc"]
    assert JsonPatches().apply(b"{}", patches, MOST) == b'{"a":"a","b":"b","c":"c"}'


def test_what_a_state_holds_is_in_no_reason() -> None:
    document = {"password": "hunter2"}
    for operation in (
        op("test", "/password", "other"),
        op("remove", "/hunter2"),
        op("add", "/password/hunter2", "hunter2"),
    ):
        assert "hunter2" not in fails(document, operation)


def test_copies_of_copies_end_before_they_fill_the_memory() -> None:
    doubling = [op("copy", f"/{number}", source="") for number in range(64)]
    before = time.monotonic()
    assert "copies too much" in fails({"a": "x" * 100}, *doubling)
    same = [op("copy", "/b", source="/a") for _ in range(10_000)]
    assert "copies too much" in fails({"a": "x" * 1000}, *same)
    assert time.monotonic() - before < here(10)


def test_what_becomes_too_long_too_deep_or_too_much_is_refused() -> None:
    assert "longer" in fails({}, op("add", "/a", "x" * 2000), most=1000)
    nested: object = 1
    for _ in range(MAX_DEPTH - 2):
        nested = {"a": nested}
    deep = op("add", "/b", nested)
    patched({}, deep)
    assert "deeper" in fails({"a": {"a": {}}}, op("add", "/a/a/b", nested))
    assert "10000" in fails({}, *[op("add", "/a", 1)] * 10_001)


def test_a_state_that_is_patched_stays_as_it_was_where_a_patch_fails() -> None:
    data, patches = b'{"a":[1,2,3]}', [b'[{"op":"add","path":"/a/0","value":0}]', b'[{"op":"x"}]']
    with pytest.raises(MalformedMessage):
        JsonPatches().apply(data, patches, MOST)
    assert JsonPatches().apply(data, patches[:1], MOST) == b'{"a":[0,1,2,3]}'


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
_PATH = st.lists(st.sampled_from(["", "0", "1", "-", "a", "~0", "~1", "00", "٣"]), max_size=4).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)
_OPERATION = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"])},
    optional={"path": _PATH | st.text(max_size=3), "from": _PATH, "value": _JSON},
)


@settings(max_examples=300, deadline=None)
@given(document=_JSON, operations=st.lists(_OPERATION, max_size=5))
def test_whatever_is_said_nothing_else_is_raised(
    document: object, operations: list[dict[str, object]]
) -> None:
    data, patch = msgspec.json.encode(document), msgspec.json.encode(operations)
    try:
        made = JsonPatches().apply(data, [patch], MOST)
    except MalformedMessage:
        return
    msgspec.json.decode(made)
