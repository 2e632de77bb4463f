"""What can be decided of search by meaning, as rows. (MGP §16.4)"""

from typing import Final

from comity.config.kinds import TEXT
from comity.config.setting import Setting

MEANING: Final = (
    Setting(
        "embedder",
        "discovery",
        TEXT,
        "what makes vectors: `auto`, `minilm`, `none`, or the name of a plugin",
    ),
    Setting(
        "model",
        "discovery",
        TEXT,
        "the folder of the weights of `minilm`, where no package brings them",
        "embedder_model",
    ),
    Setting(
        "vectors",
        "discovery",
        TEXT,
        "the folder in which vectors are kept; else beside the SQLite store",
        "vectors_folder",
    ),
)
