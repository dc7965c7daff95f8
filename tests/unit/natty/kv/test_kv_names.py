import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.kv import BadKeyError, Bucket, bucket_settings
from natty.kv.key_names import check_bucket, check_filter, check_key, is_key, read_key

TOKENS = st.text("-/_=aZ9", min_size=1)


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
        check_key(key)


@given(st.lists(TOKENS, min_size=1).map(".".join))
def test_any_key_of_adr_8_is_taken(key):
    assert check_key(key) == key


@pytest.mark.parametrize("bucket", ["", "a.b", "a b", "ö"])
def test_a_bad_bucket_is_refused(bucket):
    with pytest.raises(BadKeyError, match="bucket"):
        Bucket(None, bucket)


def test_a_bucket_is_named_and_shown():
    assert check_bucket("my_bucket-1") == "my_bucket-1"
    assert repr(Bucket(None, "b")) == "Bucket('b')"


@pytest.mark.parametrize(("ttl", "age", "window"), [(None, 0.0, 120.0), (5.0, 5.0, 5.0), (3600.0, 3600.0, 120.0)])
def test_the_duplicate_window_is_never_longer_than_the_age(ttl, age, window):
    settings = bucket_settings("b", ttl)
    assert (settings["max_age"], settings["duplicate_window"]) == (age, window)


@given(st.lists(TOKENS | st.just("*"), min_size=1), st.booleans())
def test_any_key_with_wildcards_is_a_filter(tokens, rest):
    text = ".".join(tokens) + (".>" if rest else "")
    assert check_filter(text) == text


@pytest.mark.parametrize("text", ["", ".", "a.", ".>", "a.>.b", "a*", "a>", ">.a", "a b", "ä.*", "*\n"])
def test_what_is_no_filter_is_refused(text):
    with pytest.raises(BadKeyError, match="is not a filter of keys"):
        check_filter(text)


@given(st.one_of(st.lists(TOKENS, min_size=1).map(".".join), st.text(max_size=8), st.text("a*>. ü\n", max_size=5)))
def test_what_is_shown_as_a_key_is_what_can_be_asked_for(name):
    try:
        expected = check_key(name)
    except BadKeyError:
        expected = None
    assert read_key(name.encode("utf-8", "surrogatepass")) == expected
    assert is_key(name) is (expected is not None)
