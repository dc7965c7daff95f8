"""Dead letters: what no consumer could handle, kept in a stream of its own until somebody decides."""

from natty.consuming.dead_letters.box import LetterBox, LetterNotFoundError, Retried
from natty.consuming.dead_letters.bury import BURIED, DeadLetters
from natty.consuming.dead_letters.letter import Letter, LetterFilter
from natty.consuming.dead_letters.streams import LETTERS, DeadLetterOptions

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
