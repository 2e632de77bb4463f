"""Reports how large the modules of Comity are and how they are named.

`scripts/names` prints the report. `scripts/names --check` also fails where a figure is worse than
the limit in `limits.toml`; a figure that became better may lower its limit there.
"""

import ast
import re
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "comity"
LIMITS: Final = Path(__file__).with_name("limits.toml")
SHORT_MODULE: Final = 60

WORDS: Final = tomllib.loads(LIMITS.read_text(encoding="utf-8"))["words"]
FIELD_WORDS: Final = frozenset(WORDS["of_the_field"])
IRREGULAR: Final = frozenset(WORDS["irregular_participles"])
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")

type Figures = dict[str, float]


def words_of(name: str) -> list[str]:
    """The words of a CamelCase or snake_case name, in lower case."""
    return [word.lower() for word in _WORDS.findall(name)]


def is_verb_form(name: str) -> bool:
    """Whether a name ends in a gerund or a participle that is no word of the field."""
    words = words_of(name)
    if not words or words[-1] in FIELD_WORDS:
        return False
    last = words[-1]
    return last in IRREGULAR or (len(last) > 4 and last.endswith(("ing", "ed")))


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")


@cache
def measure() -> Figures:
    """All figures; the smaller, the better, except for the median."""
    found = {path: path.read_text(encoding="utf-8") for path in modules()}
    lengths = [len(text.splitlines()) for text in found.values()]
    trees = [ast.parse(text) for text in found.values()]
    classes = [name for tree in trees for name in _classes(tree)]
    functions = [name for tree in trees for name in _public_functions(tree.body)]
    methods = [name for tree in trees for name in _public_methods(tree)]
    folders = Counter(path.parent for path in found)
    comments = sum(_comment_lines(text) for text in found.values())
    return {
        "modules": len(found),
        "lines": sum(lengths),
        "median module": statistics.median(lengths),
        "largest module": max(lengths),
        "short modules %": _percent(sum(each < SHORT_MODULE for each in lengths), len(lengths)),
        "modules in the fullest folder": max(folders.values()),
        "one-word class names %": _percent(sum(_is_one_word(c) for c in classes), len(classes)),
        "shared class names": sum(times > 1 for times in Counter(classes).values()),
        "verb forms as modules %": _percent(sum(is_verb_form(p.stem) for p in found), len(found)),
        "verb forms as classes %": _percent(sum(map(is_verb_form, classes)), len(classes)),
        "one-word functions %": _percent(sum(map(_is_one_word, functions)), len(functions)),
        "one-word methods %": _percent(sum(map(_is_one_word, methods)), len(methods)),
        "code lines for each comment line": round(sum(lengths) / max(1, comments), 1),
    }


def _classes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name


def _public_functions(body: list[ast.stmt]) -> Iterator[str]:
    """Those that stand directly in a module or in a class."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            yield node.name


def _public_methods(tree: ast.Module) -> Iterator[str]:
    """A method may be one word: its class gives the object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _public_functions(node.body)


def _is_one_word(name: str) -> bool:
    return len(words_of(name)) == 1


def _comment_lines(text: str) -> int:
    return sum(line.lstrip().startswith("#") for line in text.splitlines())


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 1)


def read_limits() -> Figures:
    limits: Figures = tomllib.loads(LIMITS.read_text(encoding="utf-8"))["limits"]
    return limits


def worse_than_the_limits(figures: Figures) -> list[str]:
    limits = read_limits()
    return [
        f"{name} is {figures[name]:g}, and the limit is {limits[name]:g}"
        for name in figures
        if name in limits and figures[name] > limits[name]
    ]


def main() -> int:
    figures = measure()
    for name, figure in figures.items():
        print(f"{name:34} {figure:>10,.6g}")
    worse = worse_than_the_limits(figures) if "--check" in sys.argv else []
    for each in worse:
        print(f"names: {each}")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
