import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.names import BadNameError, check_name
from natty.streams import difference, to_wire


def test_durations_are_seconds_here_and_nanoseconds_on_the_wire():
    settings = {"max_age": 1.5, "ack_wait": 30, "backoff": [0.5, 2], "subjects": ["a"], "max_msgs": None}
    wire = {"max_age": 1_500_000_000, "ack_wait": 30_000_000_000, "backoff": [500_000_000, 2_000_000_000]}
    assert to_wire(settings) == wire | {"subjects": ["a"]}


def test_only_what_is_wanted_is_compared():
    assert difference({"num_replicas": 1}, {"num_replicas": 1, "a_newer_field": "x"}) == []


def test_a_difference_names_both_values_and_durations_in_seconds():
    lines = difference({"max_age": 2_000_000_000, "storage": "file"}, {"max_age": 500_000_000, "storage": "memory"})
    assert lines == ["max_age is 0.5 s, wanted 2 s", "storage is 'memory', wanted 'file'"]
    (line,) = difference({"max_age": 14 * 86_400_000_000_000}, {"max_age": 0})
    assert line == "max_age is 0 s, wanted 1209600 s"


@pytest.mark.parametrize("zero", [0, "", False, [], {}, None])
def test_what_the_server_leaves_out_has_its_zero_value(zero):
    assert difference({"some_field": zero}, {}) == []
    assert difference({"some_field": "x"}, {}) == ["some_field is None, wanted 'x'"]


def test_no_limit_may_be_written_as_zero():
    assert difference({"max_msgs": 0}, {"max_msgs": -1}) == []


def test_false_is_not_minus_one_nor_true():
    assert difference({"deny_delete": False}, {"deny_delete": True}) == ["deny_delete is True, wanted False"]


def test_a_mapping_is_compared_by_what_is_wanted_of_it():
    assert difference({"metadata": {"team": "a"}}, {"metadata": {"team": "a", "_nats.ver": "2.15.1"}}) == []
    assert difference({"metadata": {"team": "b"}}, {"metadata": {"team": "a"}}) != []


@given(st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans(), st.lists(st.integers()))))
def test_nothing_differs_from_itself(settings):
    assert difference(settings, settings) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "stream's name is empty"),
        ("a.b", r"'\.' at character 2"),
        ("ab c", "' ' at character 3"),
        ("a>", "'>' at character 2"),
        ("*", "at character 1"),
        ("a/b", "at character 2"),
        ("a\\b", "at character 2"),
        ("a\x07", "at character 2"),
    ],
)
def test_a_bad_name_is_refused_with_the_character_and_its_place(name, words):
    with pytest.raises(BadNameError, match=words):
        check_name("stream", name)


@pytest.mark.parametrize("name", ["ORDERS", "a-b_c", "größe", "x" * 200])
def test_any_other_name_is_taken(name):
    assert check_name("stream", name) == name
