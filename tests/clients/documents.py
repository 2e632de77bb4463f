"""Documents as people write them: JSON with comments, in any layout."""

import json
from typing import Any, cast

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b.c", "näme", "x y", 'quo"te', "http://x", "other", "files"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "// no", "a,}", "é"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
SERVERS = st.dictionaries(NAMES, VALUES.map(lambda env: {"command": "x", "env": env}), max_size=3)
GAPS = st.sampled_from(
    [
        "",
        "",
        "",
        " ",
        "\n",
        "\n  ",
        "\n\t\t",
        ' // one "x", {\n',
        "/* two, } */",
        "\n  // three\n  ",
    ]
)


@st.composite
def json_with_comments(draw: st.DrawFn, section: str = "mcpServers") -> str:
    """A settings file: other keys, and often a section with servers."""
    document: dict[str, Any] = draw(st.dictionaries(NAMES, VALUES, max_size=3))
    if draw(st.booleans()):
        document[section] = draw(SERVERS)
        keys = draw(st.permutations(list(document)))
        document = {key: document[key] for key in keys}
    text = draw(GAPS) + _written(draw, document) + draw(GAPS)
    newline = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    mark = draw(st.sampled_from(["", "", "\ufeff"]))
    return mark + text.replace("\n", newline)


def _written(draw: st.DrawFn, value: object) -> str:
    if isinstance(value, dict):
        parts = [
            f"{_text(key)}{draw(GAPS)}:{draw(GAPS)}{_written(draw, each)}"
            for key, each in cast("dict[str, object]", value).items()
        ]
        return "{" + _joined(draw, parts) + "}"
    if isinstance(value, list):
        items = cast("list[object]", value)
        return "[" + _joined(draw, [_written(draw, each) for each in items]) + "]"
    return _text(value)


def _joined(draw: st.DrawFn, parts: list[str]) -> str:
    last = "," if parts and draw(st.booleans()) else ""
    inner = ",".join(f"{draw(GAPS)}{part}{draw(GAPS)}" for part in parts)
    return inner + last + draw(GAPS)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
