"""Metrics, dashboard and alert rules: each name that they use is one of a running gateway."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from comity.identity.wiring import VARIABLE
from tests.cluster.nats_cluster import NatsCluster
from tests.docs.pages import ROOT
from tests.support.visitor import visiting

type Table = dict[str, Any]

REFERENCE = ROOT / "docs" / "reference" / "metrics.md"
MONITORING = ROOT / "docs" / "operate" / "monitoring.md"
DASHBOARD = ROOT / "deploy" / "grafana" / "comity.json"
RULES = ROOT / "deploy" / "prometheus" / "comity.rules.yaml"
ROW = re.compile(r"^\| `((?:comity|process)_\w+)` \| (\w+) \| ([\w, ]*)\|", re.MULTILINE)
METRIC = re.compile(r"\b((?:comity|process)_\w+)(?:\{([^}]*)\})?")
SERIES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
# Prometheus adds the first two to each sample, and a histogram has the last.
COMMON_LABELS = {"instance", "job", "le"}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Each metric of the page, with its type and its labels."""
    found = ROW.findall(REFERENCE.read_text(encoding="utf-8"))
    assert len(found) == len({name for name, _, _ in found})
    return {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in found}


def dashboard() -> Table:
    return cast("Table", json.loads(DASHBOARD.read_text(encoding="utf-8")))


def panels() -> list[Table]:
    return [each for each in dashboard()["panels"] if each["type"] != "row"]


def rules() -> list[Table]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return cast("list[Table]", group["rules"])


@pytest.mark.integration
async def test_reference_lists_every_metric_of_a_running_node_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "pepper" * 8)
    nats = NatsCluster(tmp_path, 1)
    try:
        nats.start()
        async with visiting(cluster_url=nats.urls[0]) as visitor:
            text = (await (await visitor.send("GET", path="/metrics")).body()).decode()
    finally:
        nats.stop()
    list(text_string_to_metric_families(text))
    metrics = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert {name: kind for name, (kind, _) in documented().items()} == metrics
    for name, kind in metrics.items():
        assert re.fullmatch(r"(comity|process)_[a-z_]+[a-z]", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert kind not in ("histogram", "summary") or name.endswith("_seconds"), name


def _check_query(query: str) -> None:
    """Every metric and label in the query is one that the reference lists."""
    known = {
        name + suffix: labels
        for name, (kind, labels) in documented().items()
        for suffix in SERIES.get(kind, ("",))
    }
    used = METRIC.findall(query)
    assert used or query.startswith("up{"), query
    for name, selector in used:
        assert name in known, name
        named = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert named <= known[name] | COMMON_LABELS, query
    labels = {label for _, kinds in documented().values() for label in kinds} | COMMON_LABELS
    for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        assert {each.strip() for each in grouped.split(",")} <= labels, query


def test_dashboard_uses_only_metrics_and_labels_that_exist() -> None:
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    queries += [each["definition"] for each in dashboard()["templating"]["list"][1:]]
    assert len(queries) > 30
    for query in queries:
        _check_query(query)


def test_dashboard_has_the_form_that_grafana_imports() -> None:
    board = dashboard()
    assert board["uid"]
    assert board["title"]
    assert board["schemaVersion"] >= 36
    variables = {each["name"] for each in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) <= variables | {
        "__rate_interval",
        "__all",
    }
    ids = [each["id"] for each in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"]
        assert panel["description"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters)) > 0


def test_no_panel_of_the_dashboard_covers_another() -> None:
    places = [each["gridPos"] for each in dashboard()["panels"]]
    assert all(each["x"] >= 0 and each["x"] + each["w"] <= 24 for each in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_alert_rules_use_only_metrics_and_labels_that_exist() -> None:
    for rule in rules():
        _check_query(rule["expr"])


def test_every_alert_is_complete_and_on_the_page() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[sm]", rule.get("for", "0s"))
    page = MONITORING.read_text(encoding="utf-8")
    named = re.findall(r"^\| `(Comity\w+)` \|", page, re.MULTILINE)
    assert named == [rule["alert"] for rule in rules()]
