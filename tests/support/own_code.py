"""The examples of docs/extending.md as modules that a node can import."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()


def find_block(words):
    """Return the page's one block of Python with these words."""
    (body,) = [one for one in re.findall(r"^ *```python\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL) if words in one]
    return body


def write_module(folder, name):
    """Write the page's module of this name into a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    (body,) = re.findall(rf'^```python\n("""{name}\.py: .*?)^```', PAGE, re.MULTILINE | re.DOTALL)
    (folder / f"{name}.py").write_text(body)
    return folder
