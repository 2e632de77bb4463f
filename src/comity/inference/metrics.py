"""Metrics of language models: requests, tokens and cost."""

from collections import Counter
from datetime import timedelta

from comity.inference.messages import TokenUsage
from comity.inference.model import Amount
from comity.telemetry.metrics import MetricFamily, Sample, Summary


class ModelMetrics:
    """Counts what each model of this process did and cost."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._cost: Counter[str] = Counter()
        self._times: dict[str, Summary] = {}

    def add(
        self, model: str, usage: TokenUsage, spent: Amount, outcome: str, took: timedelta
    ) -> None:
        """Count one request to a model."""
        self._requests[model, outcome] += 1
        self._tokens[model, "input"] += usage.input
        self._tokens[model, "output"] += usage.output
        self._cost[model] += spent.money
        number, total = self._times.get(model, Summary(0, 0.0))
        self._times[model] = Summary(number + 1, total + took.total_seconds())

    def totals(self) -> tuple[int, int]:
        """Return the tokens of all models, and their cost in millionths."""
        return self._tokens.total(), self._cost.total()

    def families(self) -> list[MetricFamily]:
        requests: list[Sample] = [
            ((("model", model), ("outcome", outcome)), count)
            for (model, outcome), count in self._requests.items()
        ]
        tokens: list[Sample] = [
            ((("model", model), ("direction", direction)), count)
            for (model, direction), count in self._tokens.items()
        ]
        cost: list[Sample] = [
            ((("model", model),), money / 1_000_000) for model, money in self._cost.items()
        ]
        times: list[Sample] = [((("model", model),), time) for model, time in self._times.items()]
        return [
            MetricFamily("comity_model_requests_total", "counter", "Requests to models.", requests),
            MetricFamily(
                "comity_model_tokens_total", "counter", "Tokens that models used.", tokens
            ),
            MetricFamily(
                "comity_model_cost_total", "counter", "Cost of models, in their currency.", cost
            ),
            MetricFamily(
                "comity_model_request_duration_seconds",
                "summary",
                "Time from a request to a model to its end.",
                times,
            ),
        ]
