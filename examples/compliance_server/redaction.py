"""Secrets and personal data in a text: where they are, and the text without them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Redaction:
    """What was taken out, and where it stood. What it was is told nobody."""

    type: str
    start: int
    end: int

    def on_wire(self) -> dict[str, object]:
        return {"type": self.type, "position": [self.start, self.end]}


def _passes_luhn(digits: str) -> bool:
    figures = [int(each) for each in digits if each.isdigit()]
    if not 13 <= len(figures) <= 19:
        return False
    doubled = [sum(divmod(2 * each, 10)) for each in figures[-2::-2]]
    return (sum(figures[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    packed = "".join(text.split())
    turned = packed[4:] + packed[:4]
    return int("".join(str(int(each, 36)) for each in turned)) % 97 == 1


def _always(_: str) -> bool:
    return True


type _Kind = tuple[str, re.Pattern[str], Callable[[str], bool]]

# Each bounded, so that no text makes looking slow. Where two overlap, the first is told.
_KINDS: Final[tuple[_Kind, ...]] = (
    (
        "private_key",
        re.compile(
            r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[\s\S]{0,10000}?"
            r"(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)"
        ),
        _always,
    ),
    ("jwt", re.compile(r"\beyJ[\w-]{8,2000}\.[\w-]{8,4000}\.[\w-]{8,1000}"), _always),
    (
        "api_key",
        re.compile(
            r"\b(?:sk-[\w-]{12,200}|(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_\w{20,255}"
            r"|glpat-[\w-]{20,64}|xox[abeprs]-[\w-]{10,200}|AIza[\w-]{35})"
        ),
        _always,
    ),
    (
        "password",
        re.compile(r"(?i)\b(?:password|passwd|pwd)\s{0,3}(?:is|[:=])\s{0,3}(?P<it>\S{4,200})"),
        _always,
    ),
    ("iban", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), _is_iban),
    ("card_number", re.compile(r"\b\d(?:[ -]?\d){12,18}\b"), _passes_luhn),
    (
        "social_security_number",
        re.compile(r"\b(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}\b"),
        _always,
    ),
    ("email", re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}\b"), _always),
    ("phone", re.compile(r"(?<![\w+])\+\d{1,3}(?:[ ()-]{0,2}\d){6,12}\b"), _always),
)
MARK: Final = "[REDACTED]"


def redact(text: str) -> tuple[str, list[Redaction]]:
    """The text without them, and what was taken out, in the order of the text."""
    found: list[Redaction] = []
    taken = bytearray(len(text))
    for type, pattern, is_one in _KINDS:
        for match in pattern.finditer(text):
            start, end = match.span("it" if "it" in pattern.groupindex else 0)
            if is_one(match[0]) and not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                found.append(Redaction(type, start, end))
    found.sort(key=lambda it: it.start)
    parts, last = list[str](), 0
    for it in found:
        parts += [text[last : it.start], MARK]
        last = it.end
    return "".join([*parts, text[last:]]), found
