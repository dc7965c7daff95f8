import pytest
import typer

from natty.cli.stream_flags import document_of, limit, nanoseconds, retention, size_limit, storage, subjects_of


def test_what_was_not_given_is_not_wanted():
    assert document_of({"subjects": None, "max_msgs": None, "tag": [], "deny_purge": None}) == {}


def test_switches_may_be_turned_off():
    assert document_of({"deny_purge": False, "allow_direct": True, "ack": False}) == {
        **{"deny_purge": False, "allow_direct": True, "no_ack": True}
    }


def test_options_become_the_tables_of_the_server():
    given = {
        "subjects": ["a,b", "c d"],
        "cluster": "east",
        "tag": ["ssd", "eu"],
        "metadata": ["owner=us", "x=a=b", "y:1", "z=c:d"],
        "mirror": "HUB",
        "sources": ["EU", "US"],
        "transform_source": "a.*",
        "transform_destination": "b.{{wildcard(1)}}",
        "republish_source": ">",
        "republish_destination": "out.>",
        "republish_headers": True,
        "limit_consumer_inactive": 5_000_000_000,
        "limit_consumer_max_pending": 100,
    }
    assert document_of(given) == {
        "subjects": ["a", "b", "c", "d"],
        "placement": {"cluster": "east", "tags": ["ssd", "eu"]},
        "metadata": {"owner": "us", "x": "a=b", "y": "1", "z": "c:d"},
        "mirror": {"name": "HUB"},
        "sources": [{"name": "EU"}, {"name": "US"}],
        "subject_transform": {"src": "a.*", "dest": "b.{{wildcard(1)}}"},
        "republish": {"src": ">", "dest": "out.>", "headers_only": True},
        "consumer_limits": {"inactive_threshold": 5_000_000_000, "max_ack_pending": 100},
    }


def test_words_are_those_of_the_nats_tool():
    assert [storage(one) for one in ("file", "f", "Memory", "m")] == ["file", "file", "memory", "memory"]
    assert [retention(one) for one in ("limits", "interest", "work", "workq", "workqueue")] == [
        *("limits", "interest", "workqueue", "workqueue", "workqueue")
    ]


def test_no_limit_is_zero_or_minus_one():
    assert [limit("0"), limit("-1"), size_limit("0"), size_limit("-1")] == [-1, -1, -1, -1]
    assert [nanoseconds("0"), nanoseconds("-1"), nanoseconds("1d")] == [0, 0, 86400 * 10**9]


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (limit, "many", "'many' is no number; write a limit, or -1 for none"),
        (size_limit, "1Q", "'1Q' is no size"),
        (nanoseconds, "soon", "'soon' is no duration"),
        (storage, "disk", "'disk' is none of file, memory"),
        (retention, "forever", "'forever' is none of limits, interest, work"),
        (subjects_of, " , ", "' , ' holds no subject"),
        (lambda text: document_of({"metadata": [text]}), "owner", "'owner' is no metadata; write it as name=value"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(parse, text, said):
    with pytest.raises(typer.BadParameter, match=said):
        parse(text)
