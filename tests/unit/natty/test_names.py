import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.names import covers


@pytest.mark.parametrize(
    ("pattern", "subject", "covered"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("a.b", "a.b.c", False),
        ("*", "a", True),
        ("*", "*", True),
        ("a", "*", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a.>", False),
        ("*.b", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.b.*", "a.*.b", False),
        (">", "a", True),
        (">", "a.b", True),
        (">", ">", True),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a.*.c", True),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c", True),
        ("a.*.>", "a.*.*", True),
    ],
)
def test_a_pattern_covers_a_subject(pattern, subject, covered):
    assert covers([pattern], subject) is covered
    assert covers(["x.y", pattern], subject) is covered


def test_no_pattern_covers_nothing():
    assert not covers([], "a")


subjects = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda middle, end: ".".join([*middle, *end]),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)


def matches(pattern, subject):
    expression = re.escape(pattern).replace(r"\*", r"[^.]+").replace(">", ".+")
    return re.fullmatch(expression, subject) is not None


@given(patterns, subjects)
def test_a_subject_is_covered_by_the_patterns_that_match_it(pattern, subject):
    assert covers([pattern], subject) is matches(pattern, subject)


@given(patterns, patterns, subjects)
def test_what_covers_a_pattern_matches_all_that_it_matches(wide, narrow, subject):
    if covers([wide], narrow) and matches(narrow, subject):
        assert matches(wide, subject)
