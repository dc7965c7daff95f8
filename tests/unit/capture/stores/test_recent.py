"""Bytes that are kept in memory: not without limit, and those that were used last."""

import pytest

from capture.stores.recent import Recent


def test_those_that_were_not_used_for_longest_are_dropped():
    recent = Recent(25)
    for name in "ab":
        recent.add(name, name.encode() * 10)
    assert recent.get("a") == b"a" * 10
    recent.add("c", b"c" * 10)
    assert [name in recent for name in "abc"] == [True, False, True]
    assert recent.get("b") is None
    assert repr(recent) == "Recent(2 objects, 20 of 25 bytes)"
    assert len(recent) == 2


def test_one_that_is_larger_than_the_limit_is_not_kept():
    recent = Recent(5)
    recent.add("a", b"123456")
    assert recent.get("a") is None
    assert repr(recent) == "Recent(0 objects, 0 of 5 bytes)"


def test_one_that_is_larger_than_the_limit_replaces_its_earlier_bytes_and_no_others():
    recent = Recent(5)
    for name, data in (("a", b"12"), ("b", b"123"), ("a", b"123456")):
        recent.add(name, data)
    assert [recent.get(name) for name in "ab"] == [None, b"123"]
    assert repr(recent) == "Recent(1 objects, 3 of 5 bytes)"


@pytest.mark.parametrize("again", [b"", b"12345", b"1234567890"])
def test_one_that_is_added_again_counts_once_and_as_used(again):
    recent = Recent(25)
    for name, data in (("a", b"12345"), ("b", b"1" * 10), ("a", again), ("c", b"1" * 10)):
        recent.add(name, data)
    assert recent.get("a") == again
    kept = 10 * (1 + ("b" in recent)) + len(again)
    assert repr(recent) == f"Recent({len(recent)} objects, {kept} of 25 bytes)"
    assert kept <= 25
