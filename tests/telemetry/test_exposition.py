"""Figures as Prometheus reads them, read back by Prometheus' own parser."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from comity.telemetry import metrics
from comity.telemetry.metrics import (
    Figure,
    Histogram,
    Labels,
    MetricFamily,
    Sample,
    Summary,
    encode_metrics,
)
from tests.support.cases import loop_over


def page(*families: MetricFamily) -> str:
    return b"".join(encode_metrics(families)).decode()


def counter(*samples: Sample, name: str = "seen_total") -> MetricFamily:
    return MetricFamily(name, "counter", "What was seen.", samples)


def read_back(*families: MetricFamily) -> list[tuple[str, dict[str, str], float]]:
    found = text_string_to_metric_families(page(*families))
    return [(each.name, each.labels, each.value) for family in found for each in family.samples]


def test_a_page_is_what_the_format_says() -> None:
    samples: list[Sample] = [((("who", "a"), ("how", "ok")), 3), ((), 0.5)]
    assert page(counter(*samples)) == (
        "# HELP seen_total What was seen.\n"
        "# TYPE seen_total counter\n"
        'seen_total{who="a",how="ok"} 3\n'
        "seen_total 0.5\n"
    )


def test_a_family_without_samples_still_says_what_it_is() -> None:
    (family,) = text_string_to_metric_families(page(counter()))
    assert (family.type, family.documentation, family.samples) == ("counter", "What was seen.", [])


def test_a_spread_is_told_as_a_cumulative_histogram() -> None:
    spread = Histogram((0.1, 1.0), (3, 0, 2), 7.25)
    family = MetricFamily("took_seconds", "histogram", "How long.", [((("who", "a"),), spread)])
    assert read_back(family) == [
        ("took_seconds_bucket", {"who": "a", "le": "0.1"}, 3),
        ("took_seconds_bucket", {"who": "a", "le": "1"}, 3),
        ("took_seconds_bucket", {"who": "a", "le": "+Inf"}, 5),
        ("took_seconds_sum", {"who": "a"}, 7.25),
        ("took_seconds_count", {"who": "a"}, 5),
    ]


@loop_over("labels", [(), (("who", "a"),)])
def test_a_spread_and_a_sum_may_stand_with_and_without_labels(labels: Labels) -> None:
    figures: list[Figure] = [Histogram((1.0,), (1, 1), 3.5), Summary(2, 3.5)]
    for kind, figure in zip(("histogram", "summary"), figures, strict=True):
        family = MetricFamily("took_seconds", kind, "How long.", [(labels, figure)])
        told = {name: value for name, _, value in read_back(family)}
        assert (told["took_seconds_sum"], told["took_seconds_count"]) == (3.5, 2)


@loop_over(
    ("value", "said"),
    [(3.0, "3"), (0.25, "0.25"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")],
)
def test_every_number_has_its_spelling(value: float, said: str) -> None:
    assert page(counter(((), value))).splitlines()[-1] == f"seen_total {said}"


@given(st.text(st.characters(exclude_categories=())))
def test_no_label_breaks_its_line(stranger: str) -> None:
    text = page(counter(((("tool", stranger),), 1)), counter(((), 2), name="next_total"))
    assert len(text.splitlines()) == 6
    assert text.count("\n") == 6
    (family, following) = text_string_to_metric_families(text)
    assert len(family.samples[0].labels["tool"]) <= metrics.MAX_VALUE_LENGTH
    assert following.samples[0].value == 2


@loop_over("value", ['a "b" c', "back\\slash", "\\n", "ümlaut 工具"])
def test_what_is_harmless_is_read_back_as_it_was(value: str) -> None:
    assert read_back(counter(((("tool", value),), 1))) == [("seen_total", {"tool": value}, 1)]


def test_a_long_word_is_cut_and_shows_it() -> None:
    (sample,) = read_back(counter(((("tool", "x" * 4000),), 1)))
    assert sample[1]["tool"] == "x" * 127 + "…"


def test_a_long_page_comes_in_pieces_of_whole_lines() -> None:
    many: list[Sample] = [((("n", str(number)),), number) for number in range(1200)]
    pieces = list(encode_metrics([counter(*many)]))
    assert len(pieces) == 3
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert len(read_back(counter(*many))) == 1200


def test_a_help_text_is_one_line() -> None:
    family = MetricFamily("seen_total", "counter", "One\nTwo \\ three", [])
    assert page(family).splitlines()[0] == r"# HELP seen_total One\nTwo \\ three"
