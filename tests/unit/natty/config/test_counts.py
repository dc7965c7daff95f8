"""Numbers of things in sentences: "1 message is", "2 messages are"."""

import ast
import re
from pathlib import Path

import pytest

from natty.config.units import write_count

ROOT = Path(__file__).parents[4]
THINGS = (
    "messages|sequences|blocks|entries|objects|files|rows|keys|values|streams|consumers|members|groups|records|letters"
)
AFTER = re.compile(rf" (?:[a-z]+ )?(?:{THINGS}|errors|nodes|pipelines)\b[^,;:]* (?:are|were|wait|have|do)\b")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (write_count(1, "block"), "1 block"),
        (write_count(0, "block"), "0 blocks"),
        (write_count(1234, "newer message", "is", "are"), "1,234 newer messages are"),
        (write_count(1, "newer message", "is", "are"), "1 newer message is"),
    ],
)
def test_a_number_of_things_agrees_with_its_noun_and_its_verb(said, expected):
    assert said == expected


def disagreements(tree):
    """Return the f-strings that have a number, a plural and a plural's verb, and not a part of a number of things."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for before, value, after in zip(["", *node.values], node.values, node.values[1:], strict=False):
                is_part = isinstance(before, ast.Constant) and before.value.endswith((" of ", " only the first "))
                is_number = isinstance(value, ast.FormattedValue) and (
                    value.format_spec is not None or ast.unparse(value.value).startswith("len(")
                )
                if is_number and not is_part and isinstance(after, ast.Constant) and AFTER.match(after.value):
                    yield ast.unparse(node)


def test_no_sentence_of_the_programs_says_that_one_messages_are():
    wrong = [
        f"{path.relative_to(ROOT)}:{said}"
        for package in ("natty", "capture")
        for path in (ROOT / package).rglob("*.py")
        for said in disagreements(ast.parse(path.read_text()))
    ]
    assert wrong == []


def test_the_sentences_are_found():
    assert list(disagreements(ast.parse("f'{count:,} newer messages are there'")))
    assert not list(disagreements(ast.parse("f'{done:,} of {total:,} messages are stored'")))
