"""The library of the built-in embedder leaves nothing in the home folder of the gateway."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CODE = """
import contextlib, os
from comity.catalog.semantic import minilm

assert "ORT_DISABLE_TELEMETRY" not in os.environ
# The first session starts what the import did not.
with contextlib.suppress(Exception):
    minilm._onnxruntime.InferenceSession(b"no model", providers=["CPUExecutionProvider"])
"""


def test_no_id_of_the_machine_is_written(tmp_path: Path) -> None:
    hidden = ("XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    subprocess.run(
        [sys.executable, "-c", CODE],
        env={**environment, "HOME": str(tmp_path)},
        check=True,
        timeout=120,
    )
    assert [*tmp_path.rglob("*")] == []
