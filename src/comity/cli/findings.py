"""What the doctor finds of one thing: that it is well, or what is wrong and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from rich.table import Table

from comity.cli.show import plain, table

type Verdict = Literal["ok", "warning", "problem"]

STYLES: Final[dict[Verdict, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's: never a secret, since people paste such lines into questions."""

    verdict: Verdict
    about: str
    told: str
    remedy: str = ""

    def as_json(self) -> dict[str, str | None]:
        return {
            "verdict": self.verdict,
            "about": self.about,
            "told": self.told,
            "remedy": self.remedy or None,
        }


def well(about: str, told: str) -> Finding:
    return Finding("ok", about, told)


def warning(about: str, told: str, remedy: str) -> Finding:
    return Finding("warning", about, told, remedy)


def problem(about: str, told: str, remedy: str) -> Finding:
    return Finding("problem", about, told, remedy)


def findings_table(findings: Iterable[Finding]) -> Table:
    rows = [
        (
            plain(each.verdict, STYLES[each.verdict]),
            each.about,
            f"{each.told}  ->  {each.remedy}" if each.remedy else each.told,
        )
        for each in findings
    ]
    return table(("", "", ""), rows)
