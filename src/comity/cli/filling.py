"""What a person fills in or chooses at a terminal, where an ask wants more than yes or no."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import click

from comity.rules.answers import EXPIRES
from comity.rules.callbacks import CHOICE, TEXT
from comity.rules.documents import Written
from comity.wire.asks import Ask, Kind
from comity.wire.errors import Misconfigured

_TRUTHS: Final = {"true": True, "yes": True, "false": False, "no": False}

type Content = dict[str, object]


def filling(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options by which an answer says more than yes."""
    for option in (
        click.option(
            "--expires", metavar="TIME", help="How long a permission holds, as 8h or 30d."
        ),
        click.option(
            "--fill",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="What to fill in; without a value you are asked for it, unseen.",
        ),
        click.option("--choose", metavar="OPTION", help="Which of the options it is."),
    ):
        command = option(command)
    return command


def content_of(
    ask: Ask, choose: str | None, fill: Sequence[str], expires: str | None
) -> Content | None:
    """What is said beside yes; None where nothing is. Raises Misconfigured."""
    content: Content = {}
    if choose is not None:
        content[CHOICE] = choose
    for each in fill:
        name, has_value, value = each.partition("=")
        said = value if has_value else click.prompt(name, hide_input=True, err=True)
        content[name] = _read(_field(ask, name), str(said))
    if expires is not None:
        if ask.kind is not Kind.PERMISSION:
            raise Misconfigured("only a permission is given for a while; leave --expires out")
        content[EXPIRES] = (
            datetime.now(UTC) + Written(expires, "--expires").duration()
        ).isoformat()
    return content or None


def _field(ask: Ask, name: str) -> Mapping[str, object]:
    if ask.schema is None:
        if name != TEXT:
            raise Misconfigured(f"there is only one field, {TEXT}: `--fill {TEXT}`")
        return {}
    fields = cast("Mapping[str, Mapping[str, object]]", ask.schema.get("properties", {}))
    if name not in fields:
        raise Misconfigured(f"there is no field {name!r:.80}; there are {', '.join(fields):.400}")
    return fields[name]


def _read(field: Mapping[str, object], said: str) -> object:
    """A value of the field's own type; the gateway looks whether it fits."""
    try:
        match field.get("type"):
            case "integer":
                return int(said)
            case "number":
                return float(said)
            case "boolean":
                return _TRUTHS[said.lower()]
            case "array":
                return [each.strip() for each in said.split(",") if each.strip()]
            case _:
                return said
    except (ValueError, KeyError):
        raise Misconfigured(f"this field takes {field['type']}, and nothing else") from None
