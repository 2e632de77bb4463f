"""How code is judged, and whose lists count. (MGP §7, S7)"""

import pytest

from comity.rules.code_safety import (
    MOST_BYTES,
    UNDECIDED,
    CodePolicy,
    Level,
    combined,
    examine,
    hints,
)


def policy(**declared: object) -> CodePolicy:
    return combined(UNDECIDED, declared)


def test_what_a_server_declares_is_kept_to() -> None:
    found = policy(
        level="standard",
        language="python",
        max_code_size_bytes=9000,
        blocked_imports=["httpx", "subprocess"],
        blocked_patterns=["eval(", "os.system"],
        allowed_imports=["json", "httpx", "os"],
    )
    assert examine("import json", found) == ()
    assert examine("import os", found) == ("Blocked import: 'os'",)
    assert examine("import httpx", found) == ("Blocked import: 'httpx'",)
    assert examine("import datetime", found) == ("Import not allowed: 'datetime'",)
    assert "Blocked pattern: 'eval('" in examine("x = 'eval ( 1'", found)
    assert examine("x = 1\n" * 2000, found)[0].startswith("Code too large: 12000 bytes")


def test_a_server_can_only_make_it_stricter() -> None:
    decided = CodePolicy(Level.STRICT, most_bytes=100, blocked_imports=frozenset({"math"}))
    found = combined(decided, {"level": "unrestricted", "max_code_size_bytes": 10**9})
    assert (found.level, found.most_bytes) == (Level.STRICT, 100)
    widened = combined(decided, {"allowed_imports": ["os", "json", "requests"]})
    assert examine("import requests", widened) != ()
    assert examine("import os", widened) != ()
    assert examine("import json", widened) == ()
    assert combined(decided, {"level": "readonly"}).level is Level.READONLY


def test_an_operator_lets_more_through() -> None:
    decided = CodePolicy(Level.STRICT, more_imports=frozenset({"numpy", "os"}))
    found = combined(decided, {})
    assert examine("import numpy as np\nprint(np.zeros(3))", found) == ()
    assert examine("import os\nprint(os.getcwd())", found) == ()
    assert examine("import sys", found) != ()
    taken = combined(decided, {"blocked_imports": ["numpy"]})
    assert examine("import numpy", taken) != ()


@pytest.mark.parametrize("level", ["lax", "STRICT", 5, None, ["strict"], {}])
def test_a_level_that_nobody_knows_is_the_strictest(level: object) -> None:
    found = combined(UNDECIDED, {"level": level})
    assert found.level is (Level.STANDARD if level is None else Level.READONLY)


@pytest.mark.parametrize("size", ["10", -5, True, [1], 0])
def test_a_size_that_is_none_lets_nothing_through(size: object) -> None:
    assert examine("x", policy(max_code_size_bytes=size)) != ()


def test_lists_that_are_none_and_long_ones_do_no_harm() -> None:
    found = policy(blocked_imports="os", blocked_patterns=[1, None, "x" * 999, *["y"] * 999])
    assert len(found.blocked_patterns) <= 256
    assert found.most_bytes == MOST_BYTES


@pytest.mark.parametrize("level", ["strict", "readonly"])
def test_another_language_is_not_judged_strictly(level: str) -> None:
    (found,) = examine("console.log(1)", policy(level=level, language="javascript"))
    assert found.startswith("Language not supported at this level: 'javascript'")


@pytest.mark.parametrize(
    "code",
    [
        "require('child_process').execSync('id')",
        "eval ( 'x' )",
        "new Function('return 1')()",
        'Runtime.getRuntime().exec("id")',
        "system ('id');",
        "`id`",
        "import('fs')",
        "Deno.run({})",
        "os.execute('id')",
    ],
)
def test_another_language_is_searched_for_the_worst(code: str) -> None:
    assert examine(code, policy(language="any")) != ()


def test_another_language_passes_where_nothing_bad_is_found() -> None:
    assert examine("const x = [1, 2].map(n => n * 2)", policy(language="javascript")) == ()
    blocked = policy(language="javascript", blocked_imports=["lodash"])
    assert examine("import _ from 'lodash'", blocked) == ("Blocked import: 'lodash'",)


def test_hints_say_what_would_pass() -> None:
    strict = hints(policy(level="strict", max_code_size_bytes=500))
    assert strict["max_code_size_bytes"] == 500
    assert "json" in strict["allowed_imports"]  # type: ignore[operator]
    assert "subprocess" in strict["blocked_imports"]  # type: ignore[operator]
    assert "allowed_imports" not in hints(policy())


def test_half_a_character_is_refused_and_not_raised() -> None:
    assert examine("x = '\ud800'", policy()) == ("Blocked text: it holds half of a character",)
