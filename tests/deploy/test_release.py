"""The workflows and the audit: least rights, versions everywhere, one address of the project."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.audit import fetch_report, summarise
from tests.deploy.files import ROOT, project

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


@every_workflow
def test_a_workflow_may_only_read_unless_a_job_needs_more(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        assert job["timeout-minutes"] <= 120, name


@every_workflow
def test_every_action_has_a_version(path: Path) -> None:
    used = [step["uses"] for job in jobs(path).values() for step in job["steps"] if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@v\d+(\.\d+)*", action), action


@every_workflow
def test_every_script_that_runs_exists(path: Path) -> None:
    lines = [step.get("run", "") for job in jobs(path).values() for step in job["steps"]]
    for script in re.findall(r"(?m)^((?:\.ci|scripts)/\w+)", "\n".join(lines)):
        assert (ROOT / script).is_file(), script


def test_ci_runs_the_whole_proof_and_every_python_of_the_package() -> None:
    (path,) = [each for each in WORKFLOWS if each.stem == "ci"]
    assert {"run": ".ci/run"} in jobs(path)["whole"]["steps"]
    named = {each.rpartition(" ")[2] for each in project()["project"]["classifiers"]}
    versions = jobs(path)["versions"]["strategy"]["matrix"]["python"]
    assert {*versions} == {each for each in named if re.fullmatch(r"3\.\d+", each)}


def test_a_release_needs_no_stored_secret() -> None:
    (path,) = [each for each in WORKFLOWS if each.stem == "release"]
    assert {*re.findall(r"secrets\.(\w+)", path.read_text(encoding="utf-8"))} == {"GITHUB_TOKEN"}
    assert jobs(path)["pypi"]["permissions"] == {"id-token": "write"}


def test_the_release_writes_the_real_address_into_the_package() -> None:
    (path,) = [each for each in WORKFLOWS if each.stem == "release"]
    steps = "\n".join(step.get("run", "") for step in jobs(path)["package"]["steps"])
    assert "s#github.com/OWNER/comity#github.com/$GITHUB_REPOSITORY#" in steps
    for url in project()["project"]["urls"].values():
        assert url.startswith("https://github.com/OWNER/comity")


def test_a_vulnerable_package_fails_the_audit() -> None:
    found = {"id": "CVE-2030-1", "fix_versions": ["2.0"]}
    good: dict[str, Any] = {"name": "good", "version": "1.0", "vulns": []}
    bad: dict[str, Any] = {"name": "bad", "version": "1.0", "vulns": [found]}
    unknown: dict[str, Any] = {"name": "unknown", "skip_reason": "not found"}
    assert summarise([good, bad]) == (1, ["audit: bad 1.0 has CVE-2030-1; fixed in 2.0"])
    assert summarise([good])[0] == 0
    status, lines = summarise([good, unknown])
    assert (status, lines[-1]) == (0, "audit: WARNING: 1 packages were not audited")


@pytest.mark.parametrize("packages", [[], [{"name": "unknown", "skip_reason": "not found"}]])
def test_an_audit_without_advisories_warns(packages: list[dict[str, Any]]) -> None:
    status, (line,) = summarise(packages)
    assert status == 0
    assert line.startswith("audit: WARNING:")


def test_an_audit_that_takes_too_long_reports_nothing() -> None:
    assert fetch_report(seconds=0.001) == []
