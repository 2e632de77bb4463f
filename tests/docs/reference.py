"""The part of the reference that is written from the product's own tables: its settings.

`scripts/docs reference` writes it anew; a test fails while the page says something else.
"""

import re
from datetime import timedelta

from comity.config import SETTINGS, Setting
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "configuration.md"
_PART = re.compile(r"(?<=<!-- settings -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
_HEAD = "| setting | default | what it is |\n|---|---|---|\n"
_UNITS = ((3600, "h"), (60, "m"), (1, "s"))


def settings_table() -> str:
    return _HEAD + "\n".join(_row(setting) for setting in SETTINGS)


def written_table() -> str:
    found = _PART.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, f"{PAGE.name} has lost the marks around its table"
    return found.group()


def _row(setting: Setting) -> str:
    name = f"{setting.table}.{setting.name}".removeprefix(".")
    return f"| `{name}` | {_worded(setting.default)} | {setting.help} |"


def _worded(value: object) -> str:
    match value:
        case timedelta():
            seconds = round(value.total_seconds())
            size, unit = next(each for each in _UNITS if seconds % each[0] == 0)
            return f'`"{seconds // size}{unit}"`'
        case ():
            return "none"
        case str():
            return f'`"{value}"`'
        case _:
            return f"`{value}`"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_PART.sub(lambda _: settings_table(), text), encoding="utf-8")
