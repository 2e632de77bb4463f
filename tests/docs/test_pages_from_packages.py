"""The README and the quickstart at real terminals: from a wheel of a clone, and with `uvx`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.clone import build_wheel, copy_clone
from tests.docs.first_hour import QUICKSTART, README, read_the_quickstart, read_the_readme
from tests.docs.test_pages_at_a_terminal import person_env
from tests.docs.typist import PageReader

pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(shutil.which("bash") is None, reason="the pages are typed into bash"),
]

each_page = pytest.mark.parametrize(
    ("page", "read"), [(README, read_the_readme), (QUICKSTART, read_the_quickstart)]
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    build_wheel(copy_clone(place / "clone"), place / "out", os.environ["PATH"])
    (found,) = (place / "out").glob("comity-*.whl")
    return found


@each_page
def test_a_page_works_word_by_word_with_pip(
    wheel: Path, tmp_path: Path, page: Path, read: Callable[..., None]
) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=300)
    # Nothing is released: `pip install comity` installs this wheel.
    (tmp_path / "constraints.txt").write_text(f"comity @ {wheel.as_uri()}\n")
    env = person_env(tmp_path / "home", str(environment / "bin"))
    env |= {"PIP_CONSTRAINT": str(tmp_path / "constraints.txt"), **_index_settings()}
    folder = tmp_path / "folder"
    folder.mkdir()
    read(PageReader(page, folder, env), installs=True)


@each_page
def test_a_page_works_word_by_word_with_uvx(
    wheel: Path, tmp_path: Path, page: Path, read: Callable[..., None]
) -> None:
    uvx = shutil.which("uvx")
    if uvx is None:
        pytest.skip("uv is not installed")
    env = person_env(tmp_path / "home", str(Path(uvx).parent)) | _index_settings()
    folder = tmp_path / "folder"
    folder.mkdir()
    typed = f'comity() {{ uvx --quiet --python "{sys.executable}" --from "{wheel}" comity "$@"; }}'
    read(PageReader(page, folder, env, typed), installs=False)


def _index_settings() -> dict[str, str]:
    """Return where this machine takes packages from, and what it has of them already."""
    # uv reads the certificates that this machine trusts from a variable of OpenSSL.
    prefixes = ("PIP_", "UV_", "SSL_CERT_")
    settings = {name: os.environ[name] for name in os.environ if name.startswith(prefixes)}
    home = Path.home()
    places = {
        "UV_CACHE_DIR": home / ".cache" / "uv",
        "PIP_CACHE_DIR": home / ".cache" / "pip",
        "PIP_CONFIG_FILE": home / ".config" / "pip" / "pip.conf",
    }
    return {**{name: str(path) for name, path in places.items() if path.exists()}, **settings}
