"""What a run of the search bench amounts to: as text, as JSON, and on its page."""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.page import machine, markdown, replace_between
from bench.processes import ROOT
from bench.search_quality import STRATEGIES, Asked, Findings

PAGE = ROOT / "docs" / "reference" / "tool-search.md"
BEGIN, END = "<!-- quality: begin -->", "<!-- quality: end -->"
# The best of any method that was tried before this was built: recall at 5.
BEFORE = {
    "livemcp.step": 0.76,
    "livemcp.agent": 0.65,
    "bfcl": 0.86,
    "metatool.single": 0.77,
    "seal.out": 0.84,
}
# Under which --short fails: what was reached, less what chance can do in a set of that size.
FLOORS = {
    ("everyday", "keyword"): 0.28,
    ("everyday", "hybrid"): 0.56,
    ("bfcl", "keyword"): 0.80,
    ("bfcl", "hybrid"): 0.85,
    ("livemcp.agent", "keyword"): 0.53,
    ("livemcp.agent", "hybrid"): 0.58,
    ("livemcp.step", "keyword"): 0.64,
    ("livemcp.step", "hybrid"): 0.70,
    ("livemcp.task", "keyword"): 0.33,
    ("livemcp.task", "hybrid"): 0.37,
    ("metatool.multi", "keyword"): 0.53,
    ("metatool.multi", "hybrid"): 0.70,
    ("metatool.single", "keyword"): 0.60,
    ("metatool.single", "hybrid"): 0.78,
    ("seal.in", "keyword"): 0.84,
    ("seal.in", "hybrid"): 0.87,
    ("seal.out", "keyword"): 0.78,
    ("seal.out", "hybrid"): 0.84,
}
LEAST_SAVED = {"everyday": 0.95, "livemcp": 0.985}
_BINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def recall(asked: Iterable[Asked], at: int) -> float:
    """How many of the right tools are among the first so many."""
    return _mean(
        fmean(place is not None and place < at for place in each.places)
        for each in asked
        if each.places
    )


def ndcg(asked: Iterable[Asked], at: int = 5) -> float:
    """Recall in which an earlier place counts more."""
    return _mean(
        sum(1 / math.log2(place + 2) for place in each.places if place is not None and place < at)
        / sum(1 / math.log2(place + 2) for place in range(min(at, len(each.places))))
        for each in asked
        if each.places
    )


def mrr(asked: Iterable[Asked]) -> float:
    """One over the place of the first that is right."""
    return _mean(
        max((1 / (place + 1) for place in each.places if place is not None), default=0.0)
        for each in asked
        if each.places
    )


def coverage(asked: Iterable[Asked], at: int) -> float:
    """How many of a task's tools were found by any of the queries that an agent wrote for it."""
    found: dict[str, set[str]] = {}
    wanted: dict[str, list[list[str]]] = {}
    for each in asked:
        if each.task_groups:
            found.setdefault(each.task, set()).update(each.found[:at])
            wanted[each.task] = each.task_groups
    return _mean(
        fmean(bool(found[task] & set(group)) for group in groups) for task, groups in wanted.items()
    )


def reliability(asked: Iterable[Asked]) -> list[tuple[float, int, float, float]]:
    """By tenths of the score: from where, how many, the mean score, and how many were right."""
    shown = [score for each in asked if each.places for score in each.scores]
    rows: list[tuple[float, int, float, float]] = []
    for low in _BINS:
        inside = [
            (said, right)
            for said, right in shown
            if low <= said < low + 0.1 or said == 1.0 == low + 0.1
        ]
        if inside:
            means = fmean(said for said, _ in inside), fmean(right for _, right in inside)
            rows.append((low, len(inside), *means))
    return rows


def auc(asked: Iterable[Asked]) -> float:
    """How often a right tool has a higher score than a wrong one, over all questions."""
    shown = sorted(score for each in asked if each.places for score in each.scores)
    right = sum(is_right for _, is_right in shown)
    wrong = len(shown) - right
    if not right or not wrong:
        return 0.5
    total, at = 0.0, 0
    while at < len(shown):
        end = at
        while end < len(shown) and shown[end][0] == shown[at][0]:
            end += 1
        total += (at + 1 + end) / 2 * sum(is_right for _, is_right in shown[at:end])
        at = end
    return (total - right * (right + 1) / 2) / (right * wrong)


_MEASURES: dict[str, Callable[[Sequence[Asked]], float]] = {
    "recall@1": lambda asked: recall(asked, 1),
    "recall@5": lambda asked: recall(asked, 5),
    "recall@10": lambda asked: recall(asked, 10),
    "nDCG@5": ndcg,
    "MRR": mrr,
}


def tables(found: Findings) -> list[str]:
    rows = [["set, strategy", "questions", *_MEASURES, "best before, recall@5"]]
    for (name, strategy), asked in found.asked.items():
        before = f"{BEFORE[name]:.2f}" if name in BEFORE else ""
        count = sum(bool(each.places) for each in asked)
        figures = [f"{measure(asked):.3f}" for measure in _MEASURES.values()]
        rows.append([f"{name}, {strategy}", f"{count:,}", *figures, before])
    said = [markdown(rows), *_coverage(found), *_tokens(found), *_calibration(found)]
    said += _hopeless(found)
    return [*said, *(f"Not measured: {each}" for each in found.skipped)]


def _coverage(found: Findings) -> list[str]:
    parts = [
        f"{strategy} {coverage(asked, 5):.3f} ({coverage(asked, 8):.3f})"
        for strategy in STRATEGIES
        if (asked := found.asked.get(("livemcp.agent", strategy)))
    ]
    found_tools = "Tools of a task found with 5 results per query (8 results)"
    return [f"{found_tools}: {'; '.join(parts)}."] * bool(parts)


def _tokens(found: Findings) -> list[str]:
    rows = [["tokens", "all tools", "five found", "with `search_tools`", "with all own tools"]]
    for name, cost in found.costs.items():
        told = [
            f"{cost.five + own:,.0f} ({cost.saved(own):.1%} fewer)"
            for own in (cost.search, cost.own)
        ]
        rows.append([f"{name}, {cost.tools:,} tools", f"{cost.all:,}", f"{cost.five:,.0f}", *told])
    counted = {cost.counted_by for cost in found.costs.values()}
    return [markdown(rows), f"Tokens are counted by {', '.join(counted)}."] if counted else []


def _calibration(found: Findings) -> list[str]:
    asked = [
        each for (_, strategy), all_ in found.asked.items() if strategy == "hybrid" for each in all_
    ]
    if not asked:
        return []
    rows = [["score shown (hybrid, first ten)", "tools", "mean score", "right"]]
    rows += [
        [f"{low:.1f} to {low + 0.1:.1f}", f"{count:,}", f"{said:.2f}", f"{right:.2f}"]
        for low, count, said, right in reliability(asked)
    ]
    return [markdown(rows), f"Area under the curve of that score: {auc(asked):.2f}."]


def best_score(asked: Iterable[Asked], *, hopeless: bool) -> float:
    """The mean of the best score shown: where no tool is right, or where one is."""
    return _mean(
        max((score for score, _ in each.scores), default=0.0)
        for each in asked
        if (each.is_hopeless if hopeless else each.places)
    )


def _hopeless(found: Findings) -> list[str]:
    said: list[str] = []
    for (name, strategy), asked in found.asked.items():
        count = sum(each.is_hopeless for each in asked)
        if count:
            right, none = (best_score(asked, hopeless=is_so) for is_so in (False, True))
            said.append(
                f"Mean best score, {name}, {strategy}: {right:.2f} with a matching tool, "
                f"{none:.2f} for the {count} questions without one."
            )
    return said


def text(found: Findings) -> str:
    return "\n\n".join(tables(found))


def as_json(found: Findings) -> dict[str, Any]:
    return {
        "sets": {
            f"{name}/{strategy}": {
                measure: round(value(asked), 4) for measure, value in _MEASURES.items()
            }
            for (name, strategy), asked in found.asked.items()
        },
        "tokens": {
            name: {"all": cost.all, "five": round(cost.five)} for name, cost in found.costs.items()
        },
        "skipped": found.skipped,
    }


def wrong(found: Findings) -> list[str]:
    """What is so much worse than it was that chance does not explain it."""
    said = [
        f"{name}, {strategy}: recall@5 {reached:.3f}, floor {floor}"
        for (name, strategy), floor in FLOORS.items()
        if (asked := found.asked.get((name, strategy))) and (reached := recall(asked, 5)) < floor
    ]
    said += [
        f"{name}: only {saved:.1%} of the tokens are saved, floor {LEAST_SAVED[name]:.1%}"
        for name, cost in found.costs.items()
        if name in LEAST_SAVED and (saved := cost.saved(cost.search)) < LEAST_SAVED[name]
    ]
    return said


def write_page(found: Findings, page: Path = PAGE) -> None:
    head = f"`scripts/bench search`, {datetime.now(UTC):%Y-%m-%d}, {machine()}"
    replace_between(page, BEGIN, END, [head, *tables(found)])


def _mean(values: Iterable[float]) -> float:
    held = list(values)
    return fmean(held) if held else 0.0
