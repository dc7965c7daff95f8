"""The examples of docs/extending.md as modules that a node can import."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "extending.md").read_text()


def find_block(words, page="extending.md"):
    """Return the one block of Python on a page that has these words."""
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    (body,) = [one for one in blocks if words in one]
    return body


def write_module(folder, name):
    """Write the page's module of this name into a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    (body,) = re.findall(rf'^```python\n("""{name}\.py: .*?)^```', PAGE, re.MULTILINE | re.DOTALL)
    (folder / f"{name}.py").write_text(body)
    return folder
