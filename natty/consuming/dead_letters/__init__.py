"""Dead letters: messages that a consumer could not handle, kept in a separate stream until an operator decides."""

from natty.consuming.dead_letters.advisory import BadAdvisoryError, TerminatedError, TooManyDeliveriesError
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
    "TerminatedError",
    "TooManyDeliveriesError",
]
