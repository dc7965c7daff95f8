"""Metadata of wheel and sdist that depends on where the repository is: the README's links, and `[project.urls]`.

The README has relative links, which are right on a forge and in a checkout. A package index needs absolute ones.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


class Metadata(MetadataHookInterface):
    """Sets `readme` and `urls`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the long description, and the URLs if it is known where the repository is."""
        where = str(self.config.get("repository", "")).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, where)}
        metadata["urls"] = urls(where)


def absolute(text: str, where: str) -> str:
    """Return Markdown with its relative links made absolute. With `where` "", only their text stays.

    Code blocks are unchanged.
    """

    def replace(found: re.Match[str]) -> str:
        image, shown, target = found.groups()
        if not where:
            return f"({shown})" if image else shown
        return f"{image}[{shown}]({where}/{'raw' if image else 'blob'}/HEAD/{target})"

    parts = FENCED.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def urls(where: str) -> dict[str, str]:
    """Return `[project.urls]`; empty if it is not known where the repository is."""
    if not where:
        return {}
    return {
        "Source": where,
        "Documentation": f"{where}/tree/HEAD/docs",
        "Changelog": f"{where}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{where}/issues",
    }
