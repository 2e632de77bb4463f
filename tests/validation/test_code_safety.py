"""How code is judged, and whose lists count. (MGP §7, S7)"""

from comity.validation.python_code import (
    MOST_BYTES,
    UNDECIDED,
    CodePolicy,
    CodeSafetyLevel,
    combine_policies,
    examine_code,
    policy_hints,
)
from tests.support.cases import loop_over


def policy(**declared: object) -> CodePolicy:
    return combine_policies(UNDECIDED, declared)


def test_what_a_server_declares_is_kept_to() -> None:
    found = policy(
        level="standard",
        language="python",
        max_code_size_bytes=9000,
        blocked_imports=["httpx", "subprocess"],
        blocked_patterns=["eval(", "os.system"],
        allowed_imports=["json", "httpx", "os"],
    )
    assert examine_code("import json", found) == ()
    assert examine_code("import os", found) == ("Blocked import: 'os'",)
    assert examine_code("import httpx", found) == ("Blocked import: 'httpx'",)
    assert examine_code("import datetime", found) == ("Import not allowed: 'datetime'",)
    assert "Blocked pattern: 'eval('" in examine_code("x = 'eval ( 1'", found)
    assert examine_code("x = 1\n" * 2000, found)[0].startswith("Code too large: 12000 bytes")


def test_a_server_can_only_make_it_stricter() -> None:
    decided = CodePolicy(
        CodeSafetyLevel.STRICT, most_bytes=100, blocked_imports=frozenset({"math"})
    )
    found = combine_policies(decided, {"level": "unrestricted", "max_code_size_bytes": 10**9})
    assert (found.level, found.most_bytes) == (CodeSafetyLevel.STRICT, 100)
    widened = combine_policies(decided, {"allowed_imports": ["os", "json", "requests"]})
    assert examine_code("import requests", widened) != ()
    assert examine_code("import os", widened) != ()
    assert examine_code("import json", widened) == ()
    assert combine_policies(decided, {"level": "readonly"}).level is CodeSafetyLevel.READONLY


def test_an_operator_lets_more_through() -> None:
    decided = CodePolicy(CodeSafetyLevel.STRICT, more_imports=frozenset({"numpy", "os"}))
    found = combine_policies(decided, {})
    assert examine_code("import numpy as np\nprint(np.zeros(3))", found) == ()
    assert examine_code("import os\nprint(os.getcwd())", found) == ()
    assert examine_code("import sys", found) != ()
    taken = combine_policies(decided, {"blocked_imports": ["numpy"]})
    assert examine_code("import numpy", taken) != ()


@loop_over("level", ["lax", "STRICT", 5, None, ["strict"], {}])
def test_a_level_that_nobody_knows_is_the_strictest(level: object) -> None:
    found = combine_policies(UNDECIDED, {"level": level})
    assert found.level is (CodeSafetyLevel.STANDARD if level is None else CodeSafetyLevel.READONLY)


@loop_over("size", ["10", -5, True, [1], 0])
def test_a_size_that_is_none_lets_nothing_through(size: object) -> None:
    assert examine_code("x", policy(max_code_size_bytes=size)) != ()


def test_lists_that_are_none_and_long_ones_do_no_harm() -> None:
    found = policy(blocked_imports="os", blocked_patterns=[1, None, "x" * 999, *["y"] * 999])
    assert len(found.blocked_patterns) <= 256
    assert found.most_bytes == MOST_BYTES


@loop_over("level", ["strict", "readonly"])
def test_another_language_is_not_judged_strictly(level: str) -> None:
    (found,) = examine_code("console.log(1)", policy(level=level, language="javascript"))
    assert found.startswith("Language not supported at this level: 'javascript'")


@loop_over(
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
    assert examine_code(code, policy(language="any")) != ()


def test_another_language_passes_where_nothing_bad_is_found() -> None:
    assert examine_code("const x = [1, 2].map(n => n * 2)", policy(language="javascript")) == ()
    blocked = policy(language="javascript", blocked_imports=["lodash"])
    assert examine_code("import _ from 'lodash'", blocked) == ("Blocked import: 'lodash'",)


def test_hints_say_what_would_pass() -> None:
    strict = policy_hints(policy(level="strict", max_code_size_bytes=500))
    assert strict["max_code_size_bytes"] == 500
    assert "json" in strict["allowed_imports"]  # type: ignore[operator]
    assert "subprocess" in strict["blocked_imports"]  # type: ignore[operator]
    assert "allowed_imports" not in policy_hints(policy())


def test_half_a_character_is_refused_and_not_raised() -> None:
    assert examine_code("x = '\ud800'", policy()) == ("Blocked text: it holds half of a character",)
