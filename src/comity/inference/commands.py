"""`comity models`: models, prices and spend."""

from datetime import timedelta

import click

from comity.cli.api_client import Answer, ApiClient
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import DefaultListGroup, json_option, url_option
from comity.cli.output import build_table, line_text, paragraph_text, show_json, show_output
from comity.toolkit.text import count_noun

MODELS_PATH = "models"
TIMEOUT = timedelta(minutes=6)


@click.group("models", cls=DefaultListGroup)
def models_command() -> None:
    """Show which models there are, what they cost, and what was spent; try one.

    They stand in [[models]] of the settings, and who may spend how much in [[budgets]].
    """


@models_command.command("list")
@url_option
@json_option
def list_models(url: str, *, as_json: bool) -> int:
    """List every model; the same as `comity models`.

    The exit status is 1 if one of them fails as a whole just now.
    """
    answer = ApiClient(url).get(MODELS_PATH)
    found: list[Answer] = answer["models"]
    if as_json:
        show_json(answer)
    elif found:
        columns = ("ID", "MODEL", "VENDOR", "READS", "SAYS", "IN/OUT PER MILLION", "CAN")
        show_output(build_table(columns, [_row(each) for each in found]))
    else:
        show_output(line_text("There are no models; name one in [[models]] of the settings."))
    return SOMETHING_WRONG if any(each["rests_ms"] is not None for each in found) else FINE


@models_command.command("try")
@click.argument("id")
@click.argument("text")
@url_option
@json_option
def try_model(id: str, text: str, url: str, *, as_json: bool) -> int:
    """Say TEXT to the model ID, and show what it answers and what that cost."""
    answer = ApiClient(url, TIMEOUT).post(MODELS_PATH, id, "try", body={"text": text})
    if as_json:
        show_json(answer)
        return FINE
    used = f"{count_noun(answer['input_tokens'], 'token')} read, {answer['output_tokens']} said"
    show_output(
        paragraph_text(answer["text"]),
        line_text(f"{answer['model']}: {used}, {_cost(answer['cost'])}"),
    )
    return FINE


@models_command.command("spent")
@click.option("--day", default="", metavar="DAY", help="Another day than today, as 2026-03-01.")
@url_option
@json_option
def spent(day: str, url: str, *, as_json: bool) -> int:
    """Show what was spent today (UTC), by whom, and what is left of budgets."""
    query = {"day": day} if day else {}
    answer = ApiClient(url).get(MODELS_PATH, "spent", **query)
    if as_json:
        show_json(answer)
        return FINE
    if not answer["spent"] and not answer["budgets"]:
        show_output(line_text(f"Nothing was spent on {answer['day']}."))
        return FINE
    if answer["spent"]:
        columns = ("PARTY", "FEATURE", "MODEL", "REQUESTS", "READ", "SAID", "COST")
        show_output(build_table(columns, [_spent_row(each) for each in answer["spent"]]))
    if answer["budgets"]:
        show_output(
            build_table(("BUDGET", "PARTY", "TOKENS", "MONEY"), map(_budget_row, answer["budgets"]))
        )
    return FINE


def _row(one: Answer) -> list[str]:
    rests = "" if one["rests_ms"] is None else f" (rests for {one['rests_ms'] // 1000 + 1} s)"
    is_default = " *" if one["is_default"] else ""
    prices = "/".join("?" if one[name] is None else f"{one[name]:g}" for name in _PRICES)
    return [
        f"{one['id']}{is_default}",
        one["model"],
        one["vendor"],
        f"{one['context_window']:,}",
        f"{one['max_output']:,}",
        prices,
        ", ".join(one["capabilities"]) + rests,
    ]


_PRICES = ("price_input", "price_output")


def _spent_row(one: Answer) -> list[str]:
    counts = [f"{one[name]:,}" for name in ("requests", "input_tokens", "output_tokens")]
    return [one["party"], one["feature"] or "", one["model"], *counts, _cost(one["cost"])]


def _budget_row(one: Answer) -> list[str]:
    name = one["budget"] + ("" if one["feature"] == "*" else f" for {one['feature']}")
    return [name, one["party"] or "all together", _left(one, "tokens"), _left(one, "money")]


def _left(one: Answer, unit: str) -> str:
    """So much of so much, with what is held for requests under way."""
    bound, written = one[f"{unit}_per_day"], "{:,}" if unit == "tokens" else "{:.4f}"
    used = written.format(one[f"spent_{unit}"] or 0)
    if one[f"held_{unit}"]:
        used += f" + {written.format(one[f'held_{unit}'])} held"
    if bound is None:
        return used
    return f"{used} of {written.format(bound + (one[f'raised_{unit}'] or 0))}"


def _cost(cost: float) -> str:
    return f"{cost:.4f}"
