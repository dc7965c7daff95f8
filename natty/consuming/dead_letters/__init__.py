"""Dead letters: messages that no consumer could handle, in a stream of their own until an operator decides."""

from natty.consuming.dead_letters.advisory import BadAdvisoryError
from natty.consuming.dead_letters.box import LetterBox, LetterNotFoundError, Retried
from natty.consuming.dead_letters.bury import BURIED, DeadLetters
from natty.consuming.dead_letters.letter import BadLetterError, Letter, LetterFilter
from natty.consuming.dead_letters.streams import LETTERS, DeadLetterOptions

__all__ = [
    "BURIED",
    "BadAdvisoryError",
    "BadLetterError",
    "LETTERS",
    "DeadLetterOptions",
    "DeadLetters",
    "Letter",
    "LetterBox",
    "LetterFilter",
    "LetterNotFoundError",
    "Retried",
]
