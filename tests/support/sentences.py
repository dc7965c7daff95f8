"""The texts that the packages can print: string literals, with … for each value that they insert."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def texts_of(folders: list[Path]) -> Iterator[str]:
    """Yield each text of the Python files below these folders."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(one.value if isinstance(one, ast.Constant) else "…" for one in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def is_said(sentence: str, texts: list[str]) -> bool:
    """Return whether one text has each piece of the sentence, in order; … stands for a value in both."""
    pieces = [piece.strip() for piece in sentence.split("…") if piece.strip()]
    return any(_has(text, pieces) for text in texts)


def _has(text: str, pieces: list[str]) -> bool:
    position = 0
    for piece in pieces:
        found = text.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    return True
