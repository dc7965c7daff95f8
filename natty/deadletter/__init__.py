"""Dead letters: what no consumer could handle, kept in a stream of its own until somebody decides."""

from natty.deadletter.box import LetterBox, LetterNotFoundError, Retried
from natty.deadletter.bury import DeadLetters
from natty.deadletter.letter import Letter, LetterFilter
from natty.deadletter.streams import LETTERS, DeadLetterOptions
from natty.deadletter.watch import BURIED

__all__ = [
    "BURIED",
    "LETTERS",
    "DeadLetterOptions",
    "DeadLetters",
    "Letter",
    "LetterBox",
    "LetterFilter",
    "LetterNotFoundError",
    "Retried",
]
