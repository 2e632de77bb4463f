"""The tutorials and how-tos on access, approvals and audit, run as a reader would run them."""

import hashlib
import hmac
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from comity.app.plugins import contract_problem
from comity.validation.arguments import ToolDefinition
from tests.docs.pages import ROOT, snippets_of
from tests.docs.reader import HERE, SERVE, WRITTEN_ID, Asked, Reader
from tests.docs.transcript import Step, steps_of
from tests.interop.processes import answers, free_port, running
from tests.support.approved_files import approve_files

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("curl") is None, reason="the pages show requests with curl"),
]

DOCS = ROOT / "docs"
APPROVE = DOCS / "how-to" / "approve-calls.md"
NOTIFY = DOCS / "how-to" / "notify-approvers.md"
REDUCE = DOCS / "how-to" / "reduce-approval-prompts.md"
QUICKSTART = DOCS / "tutorials" / "quickstart.md"
VALIDATE = DOCS / "how-to" / "validate-arguments.md"


def first_snippet(page: Path, language: str) -> str:
    return next(each.text for each in snippets_of(page) if each.language == language)


def test_tutorial_govern_a_tool(tmp_path: Path) -> None:
    Reader(tmp_path).go_through(DOCS / "tutorials" / "govern-a-tool.md", {"comity.toml": "toml"})


def test_how_to_approve_calls(tmp_path: Path) -> None:
    (tmp_path / "comity.toml").write_text(first_snippet(APPROVE, "toml"), encoding="utf-8")
    Asked(tmp_path, "ana.key").go_through(APPROVE, {})


def test_how_to_answer_questions_of_servers(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "answer-server-questions.md"
    Asked(tmp_path).go_through(page, {"comity.toml": "toml", "cleaner.py": "python"})


def test_how_to_reduce_approval_prompts(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    script = first_snippet(REDUCE, "sh")
    (tmp_path / "comity.toml").write_text(first_snippet(REDUCE, "toml"), encoding="utf-8")
    (tmp_path / "work.sh").write_text(reader.here(script), encoding="utf-8")
    reader.go_through(REDUCE, {})


def test_how_to_verify_the_audit_log(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "verify-the-audit-log.md"
    Asked(tmp_path).go_through(page, {"comity.toml": "toml", "auditor.py": "python"})


def test_the_quickstart_does_what_it_shows(tmp_path: Path) -> None:
    reader = Asked(tmp_path)
    consoles = [
        steps_of(each.text) for each in snippets_of(QUICKSTART) if each.language == "console"
    ]
    (install,), init, (serving,), tools, (waiting,), approve, audit = consoles
    assert (install.command, serving.command) == ("pip install comity", SERVE)
    reader.follow(init)
    setting, more = (each.text for each in snippets_of(QUICKSTART) if each.language == "toml")
    configuration = tmp_path / "comity.toml"
    assert setting.splitlines()[-1] in configuration.read_text(encoding="utf-8").splitlines()
    serve = ["/bin/sh", "-c", f'cd "{tmp_path}" && exec "$@"', "sh", str(HERE / "comity"), "serve"]
    reader.port = free_port()
    with running([*serve, "--port", str(reader.port)], reader.environment()) as gateway:
        gateway.wait_until(lambda: answers(f"http://127.0.0.1:{reader.port}/ready"))
        output = gateway.said.replace(str(reader.port), "2664")
        assert serving.is_met_by(output), output
        reader.follow(tools)
        client = first_snippet(QUICKSTART, "python").replace("2664", str(reader.port))
        (tmp_path / "client.py").write_text(client, encoding="utf-8")
        assert "hello" in reader.sh(f"{sys.executable} client.py")
        reader.sh(f"({waiting.command} > call.txt 2>&1; echo ended >> call.txt) > /dev/null &")
        reader.follow(approve)
        expected = [line.replace(WRITTEN_ID, "") for line in waiting.expected]
        reader.follow([Step("cat call.txt", (*expected, "ended"))])
        with configuration.open("a", encoding="utf-8") as file:
            file.write(more)
        approve_files(tmp_path, reader.environment())
        gateway.wait_for_line("the configuration has changed")
        reader.follow(audit)


def names_in_python(page: Path) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(first_snippet(page, "python"), str(page), "exec"), names)  # noqa: S102  # our page
    return names


def test_signature_check_of_the_page() -> None:
    is_from_comity = names_in_python(NOTIFY)["is_from_comity"]
    signed = hmac.new(b"secret", b'1000.{"a":1}', hashlib.sha256).hexdigest()
    header = f"t=1000,v1={signed}"
    assert is_from_comity(b"secret", header, b'{"a":1}', 1100)
    assert not is_from_comity(b"secret", header, b'{"a":1}', 1400)
    assert not is_from_comity(b"secret", header, b'{"a":2}', 1100)
    assert not is_from_comity(b"other", header, b'{"a":1}', 1100)


def test_validator_of_the_page() -> None:
    validator = names_in_python(VALIDATE)["ForbiddenWords"]()
    assert contract_problem(validator) is None
    tool, settings = ToolDefinition("mail", "send", {}), {"forbidden": ["confidential"]}
    assert validator.examine(tool, {"text": "hello"}, settings) is None
    assert "confidential" in validator.examine(tool, {"text": "confidential"}, settings)
