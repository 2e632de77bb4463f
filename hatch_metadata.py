"""Makes the links and pictures of the README absolute in the metadata of the package.

A package index shows the README without the files of the repository beside it. The repository
itself keeps the relative links, so that they work in every clone, fork and branch.
"""

import re
from pathlib import Path
from typing import Any, override

from hatchling.metadata.plugin.interface import MetadataHookInterface

FORGE = "https://github.com"
RAW = "https://raw.githubusercontent.com"

_ELSEWHERE = r"(?!https?:|mailto:|#)"
_LINK = re.compile(rf"\]\({_ELSEWHERE}([^)\s]+)\)")
_PICTURE = re.compile(
    rf"(!\[[^\]]*\]\()({_ELSEWHERE}[^)\s]+)(?=\))|((?:src|srcset)=\")({_ELSEWHERE}[^\"]+)"
)


class ReadmeHook(MetadataHookInterface):
    """The README as a package index shows it, of the release that it belongs to."""

    @override
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source, tag = str(metadata["urls"]["Source"]), f"v{metadata['version']}"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, source, tag),
        }


def with_absolute_links(text: str, source: str, tag: str) -> str:
    """Return a README whose relative links lead to a tag of the repository at `source`."""
    raw = f"{source.replace(FORGE, RAW, 1)}/{tag}/"
    text = _PICTURE.sub(lambda found: f"{found[1] or found[3]}{raw}{found[2] or found[4]}", text)
    return _LINK.sub(lambda found: f"]({source}/blob/{tag}/{found[1]})", text)
