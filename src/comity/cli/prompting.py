"""What a server asks of a person amid a call, asked and answered at the terminal. (MCP §5.6)

Rule 1: a person sees who asks and what, before anything is answered; nothing is sent unasked.
Rule 2: whoever is not there declines.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import click

from comity.cli.asking import members
from comity.cli.show import harmless
from comity.rules.phrases import count_noun

type Frame = dict[str, Any]

DECLINED: Frame = {"action": "decline"}


@dataclass(frozen=True, slots=True)
class Person:
    """Whoever sits at the terminal, if it is one."""

    about: str
    is_there: bool

    @classmethod
    def at_the_terminal(cls, about: str) -> "Person":
        return cls(about, sys.stdin.isatty() and sys.stderr.isatty())

    def answer(self, question: Frame) -> Frame:
        """What the person says to an elicitation."""
        message = _words(question.get("message"))
        if not self.is_there:
            _say(f"comity: {self.about} asks: {message}")
            _say("comity: nobody is at the terminal to answer, so that is declined")
            return DECLINED
        _say("")
        _say(click.style(f"{self.about} asks:", bold=True))
        _say(message)
        try:
            if question.get("mode") == "url" or "url" in question:
                return _visit(question)
            return _fill_in(question)
        except click.Abort:
            _say("")
            return {"action": "cancel"}


def _visit(question: Frame) -> Frame:
    """A page is to be visited; what is typed there, neither Comity nor the client sees."""
    _say(f"It wants you to open this address: {_words(question.get('url'))}")
    agreed = click.confirm("Look at it well. Do you agree?", default=False, err=True)
    return {"action": "accept"} if agreed else DECLINED


def _fill_in(question: Frame) -> Frame:
    schema = members(question.get("requestedSchema"))
    fields = members(schema.get("properties"))
    needed = schema.get("required")
    if not click.confirm("Answer?", default=True, err=True):
        return DECLINED
    content: Frame = {}
    for name, field in fields.items():
        required = isinstance(needed, list) and name in cast("list[object]", needed)
        value = _ask(name, members(field), required=required)
        if value is not None:
            content[name] = value
    return {"action": "accept", "content": content}


def _ask(name: str, field: Frame, *, required: bool) -> object:
    """One field, until it is answered in its kind; nothing for one that may be left out."""
    choices = _choices(field)
    label = _words(field.get("title") or name)
    if field.get("description"):
        _say(click.style(f"  {_words(field['description'])}", dim=True))
    for number, (_, title) in enumerate(choices, 1):
        _say(f"  {number}. {title}")
    default = field.get("default")
    hint = "" if required or default is not None else " (may be left empty)"
    while True:
        said = click.prompt(
            f"{label}{hint}",
            default=_typed(default) if default is not None else None if required else "",
            err=True,
            show_default=default is not None,
        )
        if said == "" and not required:
            return None
        try:
            return _read(str(said), field, choices)
        except ValueError as problem:
            _say(f"  {problem}")


def _read(said: str, field: Frame, choices: Sequence[tuple[object, str]]) -> object:
    if field.get("type") == "array":
        return [_chosen(each.strip(), choices) for each in said.split(",") if each.strip()]
    if choices:
        return _chosen(said, choices)
    if field.get("type") == "boolean":
        yes_or_no = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
        if said.lower() not in yes_or_no:
            raise ValueError("Say yes or no.")
        return yes_or_no[said.lower()]
    if field.get("type") in ("integer", "number"):
        return _number(said, field)
    return _text(said, field)


def _number(said: str, field: Frame) -> int | float:
    try:
        value = int(said) if field.get("type") == "integer" else float(said)
    except ValueError:
        raise ValueError(f"Say a number ({field.get('type')}).") from None
    least, most = field.get("minimum"), field.get("maximum")
    if isinstance(least, int | float) and value < least:
        raise ValueError(f"At least {least}.")
    if isinstance(most, int | float) and value > most:
        raise ValueError(f"At most {most}.")
    return value


def _text(said: str, field: Frame) -> str:
    least, most = field.get("minLength"), field.get("maxLength")
    if isinstance(least, int) and len(said) < least:
        raise ValueError(f"At least {count_noun(least, 'character')}.")
    if isinstance(most, int) and len(said) > most:
        raise ValueError(f"At most {count_noun(most, 'character')}.")
    return said


def _chosen(said: str, choices: Sequence[tuple[object, str]]) -> object:
    """By its number, its value or its title."""
    if said.isdecimal() and 1 <= int(said[:6]) <= len(choices):
        return choices[int(said) - 1][0]
    for value, title in choices:
        if said in (value, title):
            return value
    raise ValueError("Choose one of the numbers.")


def _choices(field: Frame) -> list[tuple[object, str]]:
    """Every form in which a schema can say what may be chosen. (SEP-1330)"""
    holder = members(field.get("items")) if field.get("type") == "array" else field
    for key in ("oneOf", "anyOf"):
        if isinstance(holder.get(key), list):
            options = [members(each) for each in cast("list[object]", holder[key])]
            return [
                (each.get("const"), _words(each.get("title", each.get("const"))))
                for each in options
            ]
    values = holder.get("enum")
    if not isinstance(values, list):
        return []
    listed = cast("list[object]", values)
    names = holder.get("enumNames")
    titles = cast("list[object]", names) if isinstance(names, list) else listed
    return [(value, _words(title)) for value, title in zip(listed, titles, strict=False)]


def _typed(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in cast("list[object]", value))
    return value if isinstance(value, str) else json.dumps(value)


def _words(said: object) -> str:
    return "\n".join(harmless(line) for line in str(said or "").splitlines())


def _say(line: str) -> None:
    click.echo(line, err=True)
