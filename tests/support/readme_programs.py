"""The programs in the README of each archive, which need nothing of ours."""

import re

from capture.archive.readme import README, text

PAGE = text().decode()
PROGRAM, SETS, DECRYPTED, SIGNATURE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(code):
    """Return the names that a program of the page defines."""
    names = {"__name__": "the page"}
    exec(compile(code, README, "exec"), names)
    return names
