"""The guide of approving, gone through as a new user does; and what it and the concept page say."""

import hashlib
import hmac
import json
import shutil
from pathlib import Path
from typing import Any, override

import pytest

from tests.docs.pages import ROOT, snippets_of
from tests.docs.reader import WRITTEN_ID, Reader
from tests.docs.transcript import Step

pytestmark = pytest.mark.timeout(600)

GUIDE = ROOT / "docs" / "guides" / "approve-from-your-terminal-or-phone.md"
CONCEPT = ROOT / "docs" / "concepts" / "ask.md"


class Approver(Reader):
    """Somebody who types what the guide says, and puts in the ids that are shown."""

    @override
    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            told = WRITTEN_ID in (step.command + "".join(step.expected))
            id = self._newest() if told else WRITTEN_ID
            said = self.sh(step.command.replace(WRITTEN_ID, id)).replace(id, WRITTEN_ID)
            assert step.is_met_by(said), f"$ {step.command}\n{said}"

    def _newest(self) -> str:
        found: Any = json.loads(self.sh("comity asks --all --json --key-file ana.key"))
        return max(each["id"] for each in found["asks"])[: len(WRITTEN_ID)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide shows it with curl")
def test_the_guide_says_what_somebody_who_approves_sees(tmp_path: Path) -> None:
    configuration = next(each for each in snippets_of(GUIDE) if each.language == "toml")
    (tmp_path / "comity.toml").write_text(configuration.text, encoding="utf-8")
    Approver(tmp_path).go_through(GUIDE, {})


def test_the_guide_checks_a_signature_rightly() -> None:
    (snippet,) = [each for each in snippets_of(GUIDE) if each.language == "python"]
    names: dict[str, Any] = {}
    exec(compile(snippet.text, str(GUIDE), "exec"), names)  # noqa: S102  # our own page
    is_from_comity = names["is_from_comity"]
    signed = hmac.new(b"secret", b'1000.{"a":1}', hashlib.sha256).hexdigest()
    header = f"t=1000,v1={signed}"
    assert is_from_comity(b"secret", header, b'{"a":1}', 1100)
    assert not is_from_comity(b"secret", header, b'{"a":1}', 1400)
    assert not is_from_comity(b"secret", header, b'{"a":2}', 1100)
    assert not is_from_comity(b"other", header, b'{"a":1}', 1100)
