import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.kv import _BUCKET, _KEY, BadKeyError, Bucket, bucket_settings, marked_name


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", "key's name is empty"),
        ("a b", "' ' at character 2"),
        ("größe", "'ö' at character 3"),
        (".a", r"'\.' at character 1"),
        ("abc.", r"'\.' at character 4"),
        ("a..bcd", r"'\.' at character 3"),
        ("..", r"'\.' at character 1"),
        ("a.*", r"'\*' at character 3"),
        ("a\n", r"'\\n' at character 2"),
    ],
)
def test_a_bad_key_is_refused_with_the_character_and_its_place(key, words):
    with pytest.raises(BadKeyError, match=words):
        marked_name("key", key, _KEY)


@given(st.lists(st.text("-/_=aZ9", min_size=1), min_size=1).map(".".join))
def test_any_key_of_adr_8_is_taken(key):
    assert marked_name("key", key, _KEY) == key


@pytest.mark.parametrize("bucket", ["", "a.b", "a b", "ö"])
def test_a_bad_bucket_is_refused(bucket):
    with pytest.raises(BadKeyError, match="bucket"):
        Bucket(None, bucket)


def test_a_bucket_is_named_and_shown():
    assert marked_name("bucket", "my_bucket-1", _BUCKET) == "my_bucket-1"
    assert repr(Bucket(None, "b")) == "Bucket('b')"


@pytest.mark.parametrize(("ttl", "age", "window"), [(None, 0.0, 120.0), (5.0, 5.0, 5.0), (3600.0, 3600.0, 120.0)])
def test_the_duplicate_window_is_never_longer_than_the_age(ttl, age, window):
    settings = bucket_settings("b", ttl, 1, "")
    assert (settings["max_age"], settings["duplicate_window"]) == (age, window)
