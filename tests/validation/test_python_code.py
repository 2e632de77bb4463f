"""What of Python is refused, and where; the named cases are in `tests/security/cases`."""

from comity.validation.python_code import MAX_NODES, ImportRules, find_violations

STANDARD = ImportRules(is_strict=False, only_reads=False, allowed=None, blocked=frozenset({"os"}))
STRICT = ImportRules(True, False, frozenset({"json", "urllib.parse"}), frozenset({"os"}))


def test_violations_are_told_in_the_order_of_the_lines() -> None:
    found = find_violations("x = 1\nimport os\neval('1')\nimport os", STANDARD)
    assert found == ["Blocked import: 'os'", "Blocked name: 'eval'", "Blocked import: 'os'"]


def test_what_cannot_be_read_is_refused_with_its_line() -> None:
    assert find_violations("x = 1\nx = (", STANDARD) == ["Not Python: line 2 cannot be read"]
    assert find_violations("(" * 1000, STANDARD)[0].startswith("Not Python")


def test_too_many_parts_are_refused() -> None:
    assert find_violations("x\n" * MAX_NODES, STANDARD) == ["Code too large: it has too many parts"]


def test_a_trusted_module_is_the_operators_own() -> None:
    trusting = ImportRules(True, False, frozenset({"os"}), frozenset(), frozenset({"os"}))
    assert find_violations("import os\nprint(os.getcwd())", trusting) == []


def test_a_module_is_known_by_each_of_its_names() -> None:
    assert find_violations("import urllib.parse as p\np.quote('x')", STRICT) == []
    assert find_violations("import urllib.parse\nurllib.parse.quote('x')", STRICT) == []
    assert find_violations("import urllib.parse as p\np.sys", STRICT) != []
