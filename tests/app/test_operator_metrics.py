"""Metrics of approvals, the audit log and models, as Prometheus scrapes them, and model spans."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.program import EXAMPLE, SECONDS, Desk
from tests.interop.processes import comity
from tests.live.end_to_end import models
from tests.support.collector import collecting
from tests.support.fork_server import COMITY

pytestmark = pytest.mark.integration

CALL = ("call", "example__echo", "message=hello")
SERVER = (
    f'[[servers]]\nid = "example"\ncommand = {json.dumps(sys.executable)}\n'
    f"args = {json.dumps(EXAMPLE['args'])}\n"
)


def scrape(origin: str) -> dict[str, float]:
    """Each sample by its name and its labels, as Prometheus writes them."""
    with urllib.request.urlopen(f"{origin}/metrics", timeout=SECONDS) as reply:  # noqa: S310  # loopback
        families = text_string_to_metric_families(reply.read().decode())
    found: dict[str, float] = {}
    for family in families:
        for each in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(each.labels.items()))
            found[f"{each.name}{{{labels}}}" if labels else each.name] = each.value
    return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_approvals_and_the_audit_log_are_counted(desk: Desk) -> None:
    config = desk.write(
        "comity.toml",
        f'[policy]\nrequire_approval = "dangerous"\n{SERVER}'
        f'[store]\nurl = "sqlite:///{desk.folder}/store.db"\n',
    )
    with comity(config, desk.env) as origin:
        before = scrape(origin)
        assert before["comity_approvals_open"] == 0
        assert before["comity_audit_write_failures_total"] == 0
        late = desk.run(*CALL, "--url", origin, "--timeout", "3")
        found = re.search(r"request (\w+)", late.err)
        assert found is not None, late
        assert scrape(origin)["comity_approvals_open"] == 1
        assert desk.run("approve", found[1], "--yes", "--url", origin).status == 0
        assert desk.run(*CALL, "--url", origin).status == 0
        after = scrape(origin)
    assert after["comity_approvals_open"] == 0
    decided = [name for name in after if name.startswith("comity_approvals_decided_total")]
    assert len(decided) == 1
    assert "outcome=approved" in decided[0]
    assert after[decided[0]] == 1
    assert after["comity_approval_decision_seconds_count"] == 1
    assert 0 < after["comity_approval_decision_seconds_sum"] < SECONDS
    assert after["comity_audit_entries_total"] > before["comity_audit_entries_total"]
    assert 0 <= after["comity_audit_unsigned_entries"] <= after["comity_audit_entries_total"]
    assert "comity_audit_queue" in after


def test_a_request_to_a_model_is_counted_and_is_a_span(desk: Desk) -> None:
    reply = {"text": "Hi", "usage": [10, 40]}
    with models(reply) as served, collecting() as collected:
        config = desk.write(
            "comity.toml",
            '[[models]]\nid = "fast"\napi = "openai"\nmodel = "gpt-test"\n'
            f'url = "{served.url}/v1"\nkey_env = "MODEL_KEY"\n'
            "price_input = 1000\nprice_output = 2000\n",
        )
        env = {
            **desk.env,
            "MODEL_KEY": "sk-test",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collected.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        with comity(config, env) as origin:
            asked = [COMITY, "models", "test", "fast", "Hello", "--url", origin]
            subprocess.run(asked, env=env, timeout=SECONDS, check=True, capture_output=True)
            told = scrape(origin)
            (span,) = collected.wait_for_spans(1)
    assert told["comity_model_tokens_total{direction=input,model=fast}"] == 10
    assert told["comity_model_tokens_total{direction=output,model=fast}"] == 40
    assert told["comity_model_cost_total{model=fast}"] == pytest.approx(0.09)
    assert told["comity_model_request_duration_seconds_count{model=fast}"] == 1
    assert sum(told[name] for name in told if name.startswith("comity_model_requests_total")) == 1
    assert (span.name, span.kind, span.error) == ("chat gpt-test", "client", False)
    attributes = {name: value for name, value in span.attributes.items() if "finish" not in name}
    assert attributes.pop("gen_ai.request.max_tokens")
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-test",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 40,
    }
