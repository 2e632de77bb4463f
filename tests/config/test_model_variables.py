"""Models whose address and name the environment says."""

from pathlib import Path

import pytest

from comity.config.reading import load
from comity.wire.errors import Misconfigured

FILE = """
[[models]]
id = "main"
api = "openai"
url = "${MODEL_URL}"
model = "${MODEL_NAME:-small}"
"""


def written(folder: Path) -> Path:
    path = folder / "comity.toml"
    path.write_text(FILE, "utf-8")
    return path


def test_a_model_is_where_the_environment_says(tmp_path: Path) -> None:
    settings = load(written(tmp_path), {"MODEL_URL": "http://127.0.0.1:8080/v1"})
    (model,) = settings.models
    assert (model.url, model.model) == ("http://127.0.0.1:8080/v1", "small")


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, r"\[\[models\]\] main: url: the variable MODEL_URL is not set; set it"),
        ({"MODEL_URL": "file:///etc/passwd"}, "url: must be written as https://models"),
        ({"MODEL_URL": "http://a/v1", "MODEL_NAME": "two words"}, "model: must be written as a"),
    ],
)
def test_what_the_environment_does_not_say_well_is_a_mistake(
    tmp_path: Path, environ: dict[str, str], problem: str
) -> None:
    with pytest.raises(Misconfigured, match=problem):
        load(written(tmp_path), environ)
