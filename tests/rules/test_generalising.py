"""The narrowest condition for calls that were approved: it covers each of them, and little else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.conditions import is_too_wide, read
from comity.rules.generalising import MOST_CHOICES, generalise, shape, tree_of


def _each(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


HOME, ROOT = "/home/ana", "/root"
FILES = [f"/project/src/{number}.py" for number in range(9)]


@pytest.mark.parametrize(
    ("seen", "test"),
    [
        (_each("path", *["/project/a"] * 3), {"is": "/project/a"}),
        (_each("path", *FILES), {"under": "/project/src"}),
        (_each("path", *FILES, "/project/doc/x/y"), {"under": "/project"}),
        (_each("path", "/project/a", "/project/b", "/project"), {"under": "/project"}),
        (_each("path", *["/project/a", "/project/b"] * 2), {"in": ["/project/a", "/project/b"]}),
        (_each("where", *FILES), {"under": "/project/src"}),
        (_each("mode", "r", "rb", "r"), {"in": ["r", "rb"]}),
        (_each("n", 1, True, 1.0, "1", None), {"in": [1, True, 1.0, "1", None]}),
        (
            _each("url", *(f"https://api.example.org/{n}" for n in range(9))),
            {"host": "api.example.org"},
        ),
        (
            _each("url", *(f"http://api.example.org/{n}" for n in range(9))),
            {"host": "api.example.org", "scheme": "http"},
        ),
        (_each("list", *[["a", 1]] * 4), {"is": ["a", 1]}),
    ],
)
def test_values_become_the_narrowest_test_for_all_of_them(
    seen: list[dict[str, Any]], test: dict[str, Any]
) -> None:
    (name,) = seen[0]
    assert generalise(seen) == {"paths": {f"/{name}": test}, "only": [name]}


@pytest.mark.parametrize(
    "seen",
    [
        [],
        _each("text", *"abcdef"),
        _each("n", *range(MOST_CHOICES + 1)),
        _each("command", *(f"/bin/x{n}" for n in range(9))),
        _each("sql", *FILES),
        _each("code", *FILES),
        # Trees that are too wide, hidden, or where secrets are kept.
        _each("path", *(f"/{n}" for n in range(9))),
        _each("path", *(f"/{n}/x" for n in range(9))),
        *(
            _each("path", *(f"{tree}/{n}" for n in range(9)))
            for tree in (
                *("/etc", "/etc/ssl", "/root", f"{ROOT}/work", "/home", "/home/ana", "/Users/ana"),
                *("/var", "/usr", "/tmp", "/proc/1", "/sys/class", "/dev/shm", "/project/.git"),
                *(f"{HOME}/.ssh", "/ETC/ssl", "/run/user", "/boot/efi"),
            )
        ),
        _each("path", *FILES, "/project/.env"),
        _each("path", *FILES, "/project/../x"),
        _each("path", *FILES, "project/x"),
        _each("path", *FILES, "https://api.example.org/x"),
        _each("path", *FILES, None),
        _each("path", *FILES, 3),
        _each("url", *(f"https://{n}.example.org/" for n in range(9))),
        _each("url", *(f"http{'s' * (n % 2)}://api.example.org/{n}" for n in range(9))),
        _each("url", *(f"https://api.example.org:8443/{n}" for n in range(9))),
        _each("url", *(f"https://metadata.google.internal/{n}" for n in range(9))),
        _each("url", *(f"https://user@api.example.org/{n}" for n in range(9))),
        _each("files", *([name] for name in FILES)),
        _each("text", *["x" * 2_000] * 5),
        [*_each("path", *FILES), {"path": "/project/src/x", "head": 3}],
        [*_each("path", *FILES), {}],
        [{"path": "/project/src/x", "head": 3}, *_each("path", *FILES)],
    ],
    ids=lambda seen: ascii(seen[-1:])[:60],
)
def test_what_differs_in_another_way_is_not_generalised(seen: list[dict[str, Any]]) -> None:
    assert generalise(seen) is None


def test_calls_without_arguments_are_all_the_same() -> None:
    assert generalise([{}, {}]) == {"paths": {}, "only": []}


def test_a_condition_can_be_bound_to_a_definition() -> None:
    assert (generalise([{}], "abc") or {})["definition"] == "abc"


def test_each_argument_gets_a_test_of_its_own() -> None:
    seen = [{"path": path, "options": {"tail": False, "n": len(path) % 2}} for path in FILES]
    assert generalise(seen) == {
        "paths": {
            "/path": {"under": "/project/src"},
            "/options/tail": {"is": False},
            "/options/n": {"is": len(FILES[0]) % 2},
        },
        "only": ["options", "path"],
    }


def test_the_shape_of_arguments_is_where_they_have_values() -> None:
    assert shape({"b": {"c": 1}, "a": []}) == ("/a", "/b/c")
    assert shape({str(number): 1 for number in range(100)}) is None


_part = st.text("ab.é", min_size=1, max_size=3)
_path = st.lists(_part, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
_value = st.one_of(
    _path,
    st.sampled_from(
        ["https://a.example.org/1", "https://a.example.org/2", "http://b.example.org/"]
    ),
    st.text(max_size=3),
    st.integers(0, 3),
    st.booleans(),
    st.none(),
    st.lists(st.integers(0, 1), max_size=2),
)
_calls = st.dictionaries(st.sampled_from(["path", "url", "x"]), _value, max_size=3)


@given(st.lists(_calls, min_size=1, max_size=12))
def test_a_condition_covers_every_call_that_it_was_made_from(calls: list[dict[str, Any]]) -> None:
    where = generalise(calls)
    if where is not None:
        condition = read(where)
        assert all(condition.covers(call) for call in calls)


@given(st.lists(_path, min_size=2, max_size=8), _path)
def test_no_tree_reaches_above_what_its_paths_have_in_common(paths: list[str], other: str) -> None:
    tree = tree_of(paths)
    if tree is None:
        return
    assert not is_too_wide(tree)
    assert all(path == tree or path.startswith(f"{tree}/") for path in paths)
    deeper = {"/".join(path.split("/")[: tree.count("/") + 2]) for path in paths}
    assert len(deeper) > 1 or tree in paths
    condition = read({"paths": {"/path": {"under": tree}}, "only": ["path"]})
    if condition.covers({"path": other}):
        assert other == tree or other.startswith(f"{tree}/")


@given(st.lists(st.sampled_from(FILES), min_size=1, max_size=12), st.text(max_size=20))
def test_nothing_outside_of_the_common_tree_is_covered(paths: list[str], tail: str) -> None:
    where = generalise(_each("path", *paths))
    assert where is not None
    condition = read(where)
    for path in (f"/project/{tail}", f"/project/src/../{tail}", f"/{tail}", tail):
        if condition.covers({"path": path}):
            assert path.split("/")[:3] == ["", "project", "src"]
