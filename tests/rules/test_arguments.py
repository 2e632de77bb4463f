"""Every text of a call's arguments is found, and no more are looked for than can be."""

from comity.rules.arguments import MOST_CHARACTERS, MOST_VALUES, Found, texts


def test_texts_are_found_with_where_they_stand() -> None:
    found = texts({"a": "x", "b": {"c": ["y", {"d": "z"}]}, "n": 5, "t": True, "u": None})
    assert found is not None
    assert found == [
        Found("a", "a", "x"),
        Found("b.c[0]", "c", "y", 1),
        Found("b.c[1].d", "d", "z"),
        Found("b.c[1]", "", "d"),
        Found("b", "", "c"),
    ]


def test_too_many_values_and_too_long_texts_are_not_looked_at() -> None:
    assert texts({"a": ["x"] * MOST_VALUES}) is None
    assert texts({"a": "x" * (MOST_CHARACTERS + 1)}) is None
    assert texts({"a": "x" * (MOST_CHARACTERS + 1)}, None) is not None
    assert texts({"a": ["x"] * 100}) is not None


def test_however_deep_it_stands_it_is_found() -> None:
    inside: object = "x"
    for _ in range(5000):
        inside = [inside]
    found = texts({"a": inside})
    assert found is not None
    assert [each.text for each in found] == ["x"]
