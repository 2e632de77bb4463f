"""What the doctor finds of one thing: that it is well, or what is wrong and what to do."""

from dataclasses import dataclass
from typing import Final, Literal

type Verdict = Literal["ok", "warning", "problem"]

STYLES: Final[dict[Verdict, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's: never a secret, since people paste such lines into questions."""

    verdict: Verdict
    about: str
    told: str
    remedy: str = ""


def well(about: str, told: str) -> Finding:
    return Finding("ok", about, told)


def warning(about: str, told: str, remedy: str) -> Finding:
    return Finding("warning", about, told, remedy)


def problem(about: str, told: str, remedy: str) -> Finding:
    return Finding("problem", about, told, remedy)
