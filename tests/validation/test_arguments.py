"""Every text of a call's arguments is found, and no more are looked for than can be."""

from comity.validation.arguments import MAX_VALUES, MOST_CHARACTERS, ArgumentText, collect_texts


def test_texts_are_found_with_where_they_stand() -> None:
    found = collect_texts({"a": "x", "b": {"c": ["y", {"d": "z"}]}, "n": 5, "t": True, "u": None})
    assert found is not None
    assert found == [
        ArgumentText("a", "a", "x"),
        ArgumentText("b.c[0]", "c", "y", 1),
        ArgumentText("b.c[1].d", "d", "z"),
        ArgumentText("b.c[1]", "", "d"),
        ArgumentText("b", "", "c"),
    ]


def test_too_many_values_and_too_long_texts_are_not_looked_at() -> None:
    assert collect_texts({"a": ["x"] * MAX_VALUES}) is None
    assert collect_texts({"a": "x" * (MOST_CHARACTERS + 1)}) is None
    assert collect_texts({"a": "x" * (MOST_CHARACTERS + 1)}, None) is not None
    assert collect_texts({"a": ["x"] * 100}) is not None


def test_however_deep_it_stands_it_is_found() -> None:
    inside: object = "x"
    for _ in range(5000):
        inside = [inside]
    found = collect_texts({"a": inside})
    assert found is not None
    assert [each.text for each in found] == ["x"]
