import re
from pathlib import Path

import pytest

from natty.errors import ConfigError
from natty.streams import load_streams

DOCS = (Path(__file__).parents[4] / "docs" / "streams.md").read_text()


@pytest.fixture
def load(tmp_path):
    def write_and_load(text):
        path = tmp_path / "streams.toml"
        path.write_text(text)
        return load_streams(path)

    return write_and_load


def test_the_example_of_the_docs_is_read(load):
    (orders,) = load(re.search(r"```toml\n(.*?)```", DOCS, re.DOTALL)[1])
    assert orders.name == "ORDERS"
    assert orders.settings == {"subjects": ["orders.>"], "max_age": 604800.0, "num_replicas": 3}
    assert orders.consumers == {"billing": {"ack_wait": 60.0, "filter_subjects": ["orders.eu.>"]}}


def test_only_what_is_written_is_wanted(load):
    (stream,) = load('[streams.S]\nsubjects = ["s"]\nmax_msgs = 0\nallow_direct = false')
    assert stream.settings == {"subjects": ["s"], "max_msgs": 0, "allow_direct": False}
    assert load("") == load("[streams]") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[streams.S", "is not valid TOML: "),
        ("[stream.S]", ": stream is not known; tables begin with streams, as in [streams.ORDERS]"),
        ("streams = 5", ": streams must be a table of tables"),
        ("[streams.S]\nmax_mgs = 5", ": streams.S: there is no setting max_mgs; did you mean max_msgs"),
        ('[streams.S]\nmax_age = "soon"', ": streams.S: max_age is 'soon', and must be seconds, or text as"),
        (
            '[streams.S]\nretention = "limit"',
            ": streams.S: retention is 'limit', and must be one of limits, interest, workqueue",
        ),
        ("[streams.S.consumers]\nd = 5", ": streams.S.consumers must be a table of tables"),
        (
            "[streams.S.consumers.d]\nack_wiat = 5.0",
            ": streams.S.consumers.d: there is no setting ack_wiat; did you mean ack_wait?",
        ),
        (
            "[streams.S.consumers.d]\nbackoff = [1.0, true]",
            ": streams.S.consumers.d: backoff is [1.0, True], and must be a list of seconds",
        ),
        ('[streams."a b"]', ": streams.a b: stream name 'a b': ' ' at character 2 is not allowed"),
        ('[streams.S.consumers."a.b"]', ": streams.S.consumers.a.b: consumer name 'a.b': '.' at character 2"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(load, text, said):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert said in str(caught.value)
    assert "streams.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml can't be read: No such file or directory; check -f"):
        load_streams(tmp_path / "nowhere.toml")
