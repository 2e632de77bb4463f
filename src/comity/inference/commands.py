"""`comity models`: models, prices and spend."""

from datetime import timedelta

import click

from comity.cli.api_client import Answer
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import DefaultListGroup, check_option, gateway_options
from comity.cli.output import build_table, line_text, paragraph_text, show_document, show_output
from comity.cli.target import connect_gateway
from comity.toolkit.text import count_noun

MODELS_PATH = "models"
TIMEOUT = timedelta(minutes=6)


@click.group("models", cls=DefaultListGroup)
def models_command() -> None:
    """List and test models, and show their usage.

    [[models]] in the configuration names the models, and [[budgets]] limits their use.

    \b
    Examples:
      comity models
      comity models test small "Say hello."
      comity models usage
    """


@models_command.command("list")
@check_option("a model fails now")
@gateway_options
def list_models(*, check: bool) -> int:
    """List models with their limits and prices.

    \b
    Examples:
      comity models list
      comity models list --check
    """
    answer = connect_gateway().get(MODELS_PATH)
    found: list[Answer] = answer["models"]

    def print_table() -> None:
        if found:
            columns = (
                *("ID", "MODEL", "VENDOR", "MAX INPUT", "MAX OUTPUT"),
                *("IN/OUT PER MILLION", "CAPABILITIES"),
            )
            rows = [_row(each) for each in found]
            show_output(build_table(columns, rows, extra=("VENDOR", "CAPABILITIES")))
        else:
            show_output(line_text("There are no models. Name one in [[models]]."))

    show_document(answer, print_table, [each["id"] for each in found])
    return FAILED if check and any(each["retry_after_ms"] is not None for each in found) else DONE


@models_command.command("test")
@click.argument("id")
@click.argument("text")
@gateway_options
def test_model(id: str, text: str) -> None:
    """Send a text to a model and show its answer and cost.

    \b
    Examples:
      comity models test small "Say hello."
    """
    answer = connect_gateway(TIMEOUT).post(MODELS_PATH, id, "test", body={"text": text})

    def print_table() -> None:
        tokens = count_noun(answer["input_tokens"], "token")
        used = f"{tokens} in, {answer['output_tokens']} out"
        cost = _cost(answer["cost"])
        show_output(
            paragraph_text(answer["text"]), line_text(f"{answer['model']}: {used}, {cost}", "dim")
        )

    show_document(answer, print_table, [answer["model"]])


@models_command.command("usage")
@click.option("--day", default="", metavar="DAY", help="Day (UTC), such as 2026-03-01.")
@gateway_options
def usage(day: str) -> None:
    """Show the usage of a day and the rest of each budget.

    \b
    Examples:
      comity models usage
      comity models usage --day 2026-03-01
    """
    answer = connect_gateway().get(MODELS_PATH, "usage", **({"day": day} if day else {}))

    def print_table() -> None:
        if not answer["usage"] and not answer["budgets"]:
            show_output(line_text(f"No usage on {answer['day']}."))
        if answer["usage"]:
            columns = (
                *("PRINCIPAL", "FEATURE", "MODEL", "REQUESTS"),
                *("INPUT TOKENS", "OUTPUT TOKENS", "COST"),
            )
            show_output(build_table(columns, [_spent_row(each) for each in answer["usage"]]))
        if answer["budgets"]:
            columns = ("BUDGET", "PRINCIPAL", "TOKENS", "MONEY")
            show_output("", build_table(columns, map(_budget_row, answer["budgets"])))

    show_document(answer, print_table, [each["model"] for each in answer["usage"]])


def _row(one: Answer) -> list[str]:
    rests = (
        ""
        if one["retry_after_ms"] is None
        else f" (paused for {one['retry_after_ms'] // 1000 + 1} s)"
    )
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
    return [one["principal"], one["feature"] or "", one["model"], *counts, _cost(one["cost"])]


def _budget_row(one: Answer) -> list[str]:
    name = one["budget"] + ("" if one["feature"] == "*" else f" for {one['feature']}")
    return [name, one["principal"] or "all", _left(one, "tokens"), _left(one, "money")]


def _left(one: Answer, unit: str) -> str:
    """Return the use, the reservations of running requests, and the limit."""
    bound, written = one[f"{unit}_per_day"], "{:,}" if unit == "tokens" else "{:.4f}"
    used = written.format(one[f"spent_{unit}"] or 0)
    if one[f"held_{unit}"]:
        used += f" + {written.format(one[f'held_{unit}'])} reserved"
    if bound is None:
        return used
    return f"{used} of {written.format(bound + (one[f'raised_{unit}'] or 0))}"


def _cost(cost: float) -> str:
    return f"{cost:.4f}"
