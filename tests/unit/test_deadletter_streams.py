import pytest

from natty.deadletter.streams import covers


@pytest.mark.parametrize(
    ("wider", "narrower", "covered"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.>", "a.*.*", True),
        (">", "a.>", True),
        ("a.*.>", "a.*.*", True),
        ("a.*.*", "a.*.*", True),
        ("a.b", "a.*", False),
        ("a.*", "a.>", False),
        ("a.>", "a", False),
        ("a.*", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.b.*", "a.*.b", False),
    ],
)
def test_a_subject_covers_another_if_it_takes_all_that_the_other_takes(wider, narrower, covered):
    assert covers(wider, narrower) == covered
