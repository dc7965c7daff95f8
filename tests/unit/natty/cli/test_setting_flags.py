import re

import pytest
import typer

from natty.cli.app import make_app
from natty.cli.setting_flags import (
    CONSUMER,
    STREAM,
    consumer_options,
    document_of,
    limit,
    nanoseconds,
    retention,
    settings_of,
    size_limit,
    storage,
    stream_options,
    subjects_of,
)
from natty.streams.schema import (
    BucketConfig,
    ConsumerConfig,
    ConsumerLimits,
    Placement,
    Republish,
    StreamConfig,
    StreamSource,
    SubjectTransform,
    rows,
    texts,
)


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
        "source": ["EU", "US"],
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
        (limit, "many", "'many' is not a number; write a limit, or -1 for none"),
        (size_limit, "1Q", "'1Q' is not a size"),
        (nanoseconds, "soon", "'soon' is not a duration"),
        (storage, "disk", "'disk' is not one of file, memory"),
        (retention, "forever", "'forever' is not one of limits, interest, work"),
        (subjects_of, " , ", "' , ' contains no subject"),
        (lambda text: document_of({"metadata": [text]}), "owner", "'owner' is not metadata; write it as name=value"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(parse, text, said):
    with pytest.raises(typer.BadParameter, match=said):
        parse(text)


def settings_of_table(kind):
    """Every setting of a type, with those of the tables in it, and what is declared about it."""
    for name, (hint, setting) in rows(kind).items():
        yield name, setting
        if hasattr(hint, "__total__"):
            yield from settings_of_table(hint)


def option_names(command):
    """The long options of a command, as users write them."""
    found = typer.main.get_command(make_app())
    for word in command.split():
        found = found.commands[word]
    return {name for option in found.params for name in (*option.opts, *option.secondary_opts) if name[:2] == "--"}


@pytest.mark.parametrize(
    ("kind", "without_row"),
    [
        (StreamConfig, set()),
        (ConsumerConfig, set()),
        (BucketConfig, set()),
        (Placement, set()),
        (Republish, set()),
        (SubjectTransform, set()),
        (ConsumerLimits, set()),
        (StreamSource, set(StreamSource.__annotations__)),  # `natty stream mirror` has flags for it
    ],
)
def test_every_setting_of_a_type_has_its_row(kind, without_row):
    assert set(kind.__annotations__) - set(rows(kind)) == without_row
    own = set(kind.__annotations__) - without_row - (set(rows(StreamConfig)) if kind is BucketConfig else set())
    assert {name for name, text in texts(kind).items() if text.endswith(".")} == own


@pytest.mark.parametrize(
    ("kind", "flags", "command"),
    [(StreamConfig, STREAM, "stream add"), (ConsumerConfig, CONSUMER, "consumer add")],
)
def test_every_setting_has_a_flag_of_its_own_or_the_reason_why_it_has_none(kind, flags, command):
    with_flag = {flag.keys[-1] for flag in flags.values()}
    tables = {name for name, (hint, _) in rows(kind).items() if hasattr(hint, "__total__") and rows(hint)}
    for name, setting in settings_of_table(kind):
        assert (name in with_flag) + bool(setting.without_flag) + (name in tables) == 1, name
    assert {f"--{flag.name}" for flag in flags.values()} <= option_names(command)
    assert len({flag.name for flag in flags.values()}) == len(flags)


def test_a_reason_names_flags_that_there_are():
    for setting in (one for _, one in settings_of_table(ConsumerConfig) if one.without_flag):
        assert set(re.findall(r"--[a-z-]+", setting.without_flag)) <= option_names("consumer add")


@pytest.mark.parametrize(("flags", "what"), [(STREAM, "stream"), (CONSUMER, "consumer")])
def test_edit_has_the_flags_of_what_can_be_edited(flags, what):
    added, edited = option_names(f"{what} add"), option_names(f"{what} edit")
    for flag in flags.values():
        assert f"--{flag.name}" in added
        assert (f"--{flag.name}" in edited) == flag.setting.editable, flag.name


def test_a_bucket_has_the_flags_of_its_own_settings():
    own = set(rows(BucketConfig)) - set(rows(StreamConfig))
    assert {f"--{name.replace('_', '-')}" for name in own} <= option_names("kv add")


def test_flags_keep_their_names():
    """Command lines of users depend on them; the names of the settings are the server's."""
    renamed = {
        flag.name: ".".join(flag.keys) for flag in STREAM.values() if flag.name != flag.keys[-1].replace("_", "-")
    }
    assert renamed == {
        "discard-per-subject": "discard_new_per_subject",
        "replicas": "num_replicas",
        "dupe-window": "duplicate_window",
        "first-sequence": "first_seq",
        "allow-mirror-direct": "mirror_direct",
        "allow-batch": "allow_atomic",
        "allow-fast-ingest": "allow_batched",
        "allow-counter": "allow_msg_counter",
        "allow-schedules": "allow_msg_schedules",
        "allow-rollup": "allow_rollup_hdrs",
        "ack": "no_ack",
        "subject-del-markers-ttl": "subject_delete_marker_ttl",
        "tag": "placement.tags",
        "republish-source": "republish.src",
        "republish-destination": "republish.dest",
        "republish-headers": "republish.headers_only",
        "transform-source": "subject_transform.src",
        "transform-destination": "subject_transform.dest",
        "limit-consumer-inactive": "consumer_limits.inactive_threshold",
        "limit-consumer-max-pending": "consumer_limits.max_ack_pending",
        "source": "sources",
    }
    renamed = {flag.name: flag.keys[0] for flag in CONSUMER.values() if flag.name != flag.keys[0].replace("_", "-")}
    assert renamed == {
        "filter": "filter_subjects",
        "ack": "ack_policy",
        "wait": "ack_wait",
        "max-pending": "max_ack_pending",
        "max-pull-batch": "max_batch",
        "max-pull-bytes": "max_bytes",
        "max-pull-expire": "max_expires",
        "deliver": "deliver_policy",
        "replay": "replay_policy",
        "sample": "sample_freq",
        "replicas": "num_replicas",
        "memory": "mem_storage",
        "pinned-ttl": "priority_timeout",
        "pause": "pause_until",
    }


def test_a_flag_says_its_unit_default_and_minimum_version():
    help_of = {name: option.__metadata__[0].help for name, option in stream_options(defaults=True).items()}
    assert help_of["max_age"] == "Maximum age of a message, such as 7d. -1: no limit."
    assert help_of["dupe_window"] == "How long the server remembers message ids, such as 2m. Default: 2m."
    assert help_of["allow_fast_ingest"].endswith(" Needs nats-server 2.14. Default: off.")
    assert help_of["tag"].endswith(" May be given several times.")


def test_the_flags_of_edit_show_no_defaults():
    """What is not given stays as it is."""
    for options in (stream_options(editing=True), consumer_options(editing=True)):
        shown = {name: option.__metadata__[0].help for name, option in options.items()}
        assert [name for name, text in shown.items() if "Default" in text and not name.startswith("backoff_")] == []
        assert all(text.endswith(".") for text in shown.values())


def test_a_consumer_is_given_seconds_and_a_stream_nanoseconds():
    assert settings_of({"wait": 30.0, "max_pull_expire": 5.0, "filter": ["a,b"], "sample": 50}) == {
        **{"ack_wait": 30.0, "max_expires": 5.0, "filter_subjects": ["a", "b"], "sample_freq": "50"}
    }
    parsers = {name: option.__metadata__[0].parser for name, option in (stream_options() | consumer_options()).items()}
    assert parsers["max_age"]("1s") == 10**9
    assert parsers["limit_consumer_inactive"]("1s") == 10**9
    assert parsers["wait"]("1s") == parsers["inactive_threshold"]("1s") == 1.0
