"""Each setting is declared once, and no other table of settings stands beside that declaration."""

import ast
from pathlib import Path

from comity.app.settings import TABLES, ServerSettings
from comity.config.fields import fields_of
from comity.servers.settings import SupervisionSettings
from tests.architecture.sources import MODULES, SOURCE, nodes_of

# A class that has so many names of one table declares these settings again.
REPEATED_NAMES = 5


def _callers_of(name: str) -> set[str]:
    return {
        path.relative_to(SOURCE).as_posix()
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }


def _classes_in(path: Path) -> dict[str, set[str]]:
    """The names of the annotated fields of each class."""
    return {
        node.name: {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
    }


def test_settings_are_declared_in_settings_modules_alone() -> None:
    declaring = _callers_of("setting")
    assert declaring
    assert [each for each in declaring if Path(each).name != "settings.py"] == []


def test_a_field_of_the_configuration_comes_from_its_declaration_alone() -> None:
    assert _callers_of("ConfigField") == {"config/fields.py"}


def test_no_other_class_repeats_the_settings_of_a_table() -> None:
    classes = [(path, name, names) for path in MODULES for name, names in _classes_in(path).items()]
    for table in (*TABLES.values(), ServerSettings, SupervisionSettings):
        settings = fields_of(table).keys()
        repeating = [
            f"{path}: {name}"
            for path, name, names in classes
            if name != table.__name__ and len(names & settings) >= REPEATED_NAMES
        ]
        assert repeating == [], f"these repeat settings of {table.__name__}"


def test_the_tables_of_one_server_share_no_setting() -> None:
    """Both are read from one table of the file."""
    assert fields_of(ServerSettings).keys().isdisjoint(fields_of(SupervisionSettings))
