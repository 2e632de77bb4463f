"""The table of mutants: for each row, one place of the product and how it is broken there.

Rule 1: a place is a piece of text that stands once in the product, not a path, so that the table
        survives moves. Where it stands no more, or twice, the mutant is stale.
Rule 2: which rows must have a mutant is drawn by a seed, and not by whoever writes them. A row's
        turn depends on its id alone, so that a new row changes little of the draw.
Rule 3: a mutant runs. One with a name that the product lost in the meantime, or that cannot be
        read at all, fails every test that meets it, and shows nothing of its row.
"""

import ast
import builtins
import hashlib
import re
import symtable
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("tests/ledger/mutants.toml")
PRODUCT = Path("src/comity")
SEED = 13
SAMPLE = 60
_GIVEN = frozenset(dir(builtins)) | {"__file__", "__path__"}
_MEMBER = re.compile(r"\b(\w+)\.(\w+)")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to break what a row promises."""

    row: str
    breaks: str
    find: str
    replace: str


def read_mutants(root: Path) -> list[Mutant]:
    with (root / TABLE).open("rb") as file:
        return [Mutant(**each) for each in tomllib.load(file)["mutant"]]


def drawn(rows: Iterable[str], seed: int, count: int) -> list[str]:
    """So many of the rows, in the order of the draw."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"{seed}:{row}".encode()).digest())[:count]


class Product:
    """The text of the product, in which places are looked up."""

    def __init__(self, root: Path) -> None:
        self._sources = (root / PRODUCT).parent
        self._texts = {
            path: path.read_text(encoding="utf-8")
            for path in sorted((root / PRODUCT).rglob("*.py"))
        }

    def place_of(self, mutant: Mutant) -> Path | None:
        """The only file in which the piece of text stands, and only once; None if it is stale."""
        found = [path for path, text in self._texts.items() if mutant.find in text]
        if len(found) != 1 or self._texts[found[0]].count(mutant.find) != 1:
            return None
        return found[0]

    def broken(self, mutant: Mutant, place: Path) -> str:
        """The whole file with the mutant in it."""
        return self._texts[place].replace(mutant.find, mutant.replace)

    def whole(self, place: Path) -> str:
        return self._texts[place]

    def unknown_names(self, mutant: Mutant, place: Path) -> set[str]:
        """The names that only the broken file uses and that nothing binds, or why it is no code."""
        broken, whole = self.broken(mutant, place), self.whole(place)
        try:
            unknown = _unbound_names(broken)
        except SyntaxError as error:
            return {str(error)}
        if unknown:
            unknown -= _unbound_names(whole)
        members = {*_MEMBER.findall(mutant.replace)} - {*_MEMBER.findall(whole)}
        if members:
            modules = self._modules_imported_in(whole)
            unknown |= {
                f"{name}.{member}"
                for name, member in members
                if name in modules and member not in _names_bound_in(self._texts[modules[name]])
            }
        return unknown

    def _modules_imported_in(self, text: str) -> dict[str, Path]:
        """The modules of the product that a module imports by their names."""
        paths = {
            alias.asname or alias.name: self._sources / node.module.replace(".", "/") / alias.name
            for node in ast.parse(text).body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        files = {name: path.with_name(f"{path.name}.py") for name, path in paths.items()}
        return {name: path for name, path in files.items() if path in self._texts}

    def stale(self, mutants: Iterable[Mutant]) -> Iterator[Mutant]:
        for mutant in mutants:
            if mutant.find == mutant.replace or self.place_of(mutant) is None:
                yield mutant


def _unbound_names(text: str) -> set[str]:
    known = _names_bound_in(text) | _GIVEN
    return {
        symbol.get_name()
        for table in _tables_of(symtable.symtable(text, "<mutant>", "exec"))
        for symbol in table.get_symbols()
        if symbol.is_referenced() and symbol.is_global() and symbol.get_name() not in known
    }


def _names_bound_in(text: str) -> set[str]:
    return {
        symbol.get_name()
        for symbol in symtable.symtable(text, "<mutant>", "exec").get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }


def _tables_of(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables_of(child)
