"""The words of a line that bash completes: it splits them at `:`, `=` and `@`, and replaces only the last part."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

_BREAK = re.compile("[:=@]+")
"""A word between two parts of a word. The others of COMP_WORDBREAKS end a command, or begin another file's name."""
_KEPT = re.compile("(.*[:=])?([^:=]*(?=@))?", re.DOTALL)
"""What bash keeps of a word: it replaces what follows the last `:` or `=`, or begins at the last `@`."""


@contextmanager
def rejoin_words(program: str, environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """If the body completes a word for bash, let it see whole words, and print of each answer what bash inserts.

    bash does not say which words stand side by side. `a = b` is taken for `a=b`, which no command needs.
    """
    if environment.get(f"_{program.upper()}_COMPLETE") != "complete_bash":
        yield
        return
    words, current = join(environment["COMP_WORDS"].split("\n"), int(environment["COMP_CWORD"]))
    kept = keep(environment["COMP_WORDS"].split("\n"), words, current)
    environment.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(current))
    said = StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:
        print("".join(line.removeprefix(kept) for line in said.getvalue().splitlines(keepends=True)), end="")


def join(parts: Sequence[str], current: int) -> tuple[list[str], int]:
    """Return the whole words, and the number of the one that contains the part `current`. Pure."""
    words: list[str] = []
    at, glued = current, False
    for number, part in enumerate(parts):
        is_break = bool(_BREAK.fullmatch(part))
        if words and part and (is_break or glued):
            words[-1] += part
        else:
            words.append(part)
        if number == current:
            at = len(words) - 1
        glued = is_break
    return words, at


def keep(parts: Sequence[str], words: Sequence[str], current: int) -> str:
    """Return the beginning of the current word that bash keeps in the line, so that an answer must not repeat it.

    Returns "" if bash did not split the word. An option's name and its `=` are left out: answers do not contain them.
    """
    if current >= len(words) or words[current] in parts:
        return ""
    found = _KEPT.match(words[current])
    kept = found[0] if found else ""
    return kept.partition("=")[2] if kept.startswith("-") else kept
