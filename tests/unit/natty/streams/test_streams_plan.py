import re
from pathlib import Path

import pytest

from natty.streams.planning import CONSUMER, STREAM, Plan, Risk, plan

S, D, F = Risk.SAFE, Risk.DESTRUCTIVE, Risk.FIXED
DOCS = (Path(__file__).parents[4] / "docs" / "streams.md").read_text()


def risk_of(setting, have, want, judges=STREAM):
    planned = plan("it", {setting: want}, {} if have is None else {setting: have}, judges)
    return planned.changes[0].risk if planned.changes else None


@pytest.mark.parametrize(
    ("setting", "have", "want", "risk"),
    [
        ("description", "a", "b", S),
        ("metadata", {"team": "a"}, {"team": "b"}, S),
        ("compression", "none", "s2", S),
        ("compression", "s2", "none", S),
        ("subjects", ["a"], ["a", "b"], S),
        ("subjects", ["a.*"], ["a.>"], S),
        ("subjects", ["a.b", "a.c"], ["a.*"], S),
        ("subjects", ["a.>"], ["a.*"], D),
        ("subjects", ["a", "b"], ["a"], D),
        ("subjects", ["a"], ["b"], D),
        ("subjects", ["a"], [], D),
        *[
            (limit, have, want, risk)
            for limit in ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size", "max_consumers")
            for have, want, risk in [(5, 6, S), (5, -1, S), (5, 0, S), (5, 4, D), (-1, 5, D), (0, 5, D), (None, 5, D)]
        ],
        ("duplicate_window", 5, 6, S),
        ("duplicate_window", 5, 4, D),
        ("duplicate_window", 5, 0, D),
        ("num_replicas", 1, 3, S),
        ("num_replicas", 3, 1, D),
        *[
            (switch, have, want, risk)
            for switch in ("allow_direct", "mirror_direct", "allow_atomic", "allow_batched")
            for have, want, risk in [(False, True, S), (None, True, S), (True, False, D)]
        ],
        ("allow_msg_ttl", False, True, S),
        ("allow_msg_ttl", True, False, F),
        ("allow_msg_schedules", False, True, S),
        ("allow_msg_schedules", True, False, F),
        ("allow_rollup_hdrs", False, True, D),
        ("allow_rollup_hdrs", True, False, D),
        *[(switch, False, True, D) for switch in ("deny_delete", "deny_purge", "sealed")],
        *[(switch, True, False, F) for switch in ("deny_delete", "deny_purge", "sealed")],
        ("discard", "old", "new", D),
        ("discard", "new", "old", D),
        ("retention", "limits", "interest", D),
        ("retention", "limits", "workqueue", F),
        ("retention", "workqueue", "limits", F),
        ("storage", "file", "memory", F),
        ("mirror", None, {"name": "A"}, F),
        ("first_seq", 1, 5, F),
        ("persist_mode", "default", "async", F),
        ("sources", [], [{"name": "A"}], D),
        ("placement", None, {"cluster": "a"}, D),
        ("republish", None, {"src": ">", "dest": "x.>"}, D),
        ("subject_transform", None, {"src": "a", "dest": "b"}, D),
        ("a_setting_of_2030", 1, 2, D),
    ],
)
def test_what_may_become_of_a_streams_setting(setting, have, want, risk):
    assert risk_of(setting, have, want) is risk


@pytest.mark.parametrize(
    ("setting", "have", "want", "risk"),
    [
        ("description", "a", "b", S),
        ("ack_wait", 5, 6, S),
        ("ack_wait", 5, 4, D),
        *[
            (limit, have, want, risk)
            for limit in ("max_ack_pending", "max_deliver", "inactive_threshold", "max_batch", "max_expires")
            for have, want, risk in [(5, 6, S), (5, -1, S), (5, 4, D), (-1, 5, D)]
        ],
        ("num_replicas", 0, 3, S),
        ("num_replicas", 3, 1, D),
        ("filter_subjects", ["a"], ["a", "b"], D),
        ("filter_subjects", None, ["a"], D),
        ("filter_subjects", ["a"], [], D),
        ("backoff", None, [1, 2], D),
        ("headers_only", False, True, D),
        ("ack_policy", "explicit", "all", F),
        ("deliver_policy", "all", "new", F),
        ("opt_start_seq", None, 5, F),
        ("replay_policy", "instant", "original", F),
        ("max_waiting", 512, 1024, F),
        ("priority_groups", None, ["a"], D),
    ],
)
def test_what_may_become_of_a_consumers_setting(setting, have, want, risk):
    assert risk_of(setting, have, want, CONSUMER) is risk


def test_what_is_the_same_is_no_change():
    assert plan("it", {"max_msgs": 0, "subjects": ["b", "a"]}, {"max_msgs": -1, "subjects": ["a", "b"]}, STREAM).settled
    assert not Plan("it", missing=True).settled


ZEROS = {"opt_start_seq": 0, "opt_start_time": None, "filter_subject": "", "subject_transforms": [], "external": None}


@pytest.mark.parametrize(
    ("wanted", "actual"),
    [
        ({"sources": [{"name": "A"} | ZEROS]}, {"sources": [{"name": "A"}]}),
        ({"sources": [{"name": "A"}]}, {"sources": [{"name": "A"} | ZEROS]}),
        ({"sources": [{"name": "A", "external": {"api": "x", "deliver": ""}}]},
         {"sources": [{"name": "A", "external": {"api": "x"}}]}),
        ({"sources": [{"name": "A", "subject_transforms": [{"src": "a", "dest": ""}]}]},
         {"sources": [{"name": "A", "subject_transforms": [{"src": "a"}]}]}),
        ({"mirror": {"name": "A"} | ZEROS}, {"mirror": {"name": "A"}}),
        ({"mirror": {"name": "A", "external": {"api": "", "deliver": ""}}}, {"mirror": {"name": "A"}}),
        ({"placement": {"cluster": "", "tags": []}}, {}),
        ({"republish": {"src": "", "dest": "", "headers_only": False}}, {"republish": None}),
    ],
)  # fmt: skip
def test_a_zero_inside_of_a_setting_is_the_same_as_none(wanted, actual):
    assert plan("it", wanted, actual, STREAM).settled


@pytest.mark.parametrize(
    ("wanted", "actual"),
    [
        ({"sources": [{"name": "A"}]}, {"sources": [{"name": "A", "opt_start_seq": 5}]}),
        ({"sources": [{"name": "A", "opt_start_seq": 5}]}, {"sources": [{"name": "A"}]}),
        ({"sources": [{"name": "A"}]}, {"sources": [{"name": "A"}, {"name": "B"}]}),
        ({"placement": {"cluster": ""}}, {"placement": {"cluster": "east"}}),
        ({"consumer_limits": {"max_ack_pending": 0}}, {"consumer_limits": {"max_ack_pending": 5}}),
    ],
)
def test_a_zero_differs_from_a_value(wanted, actual):
    assert not plan("it", wanted, actual, STREAM).settled


def test_a_change_says_what_is_what_was_wanted_and_why_it_is_refused():
    planned = plan("it", {"max_age": 2 * 10**9, "max_msgs": 5}, {"max_age": 3 * 10**9, "max_msgs": 4}, STREAM)
    assert [str(one) for one in planned.changes] == [
        "max_age is 3 s, wanted 2 s (destructive: messages beyond it are deleted)",
        "max_msgs is 4, wanted 5",
    ]
    assert planned.worst is D
    assert [one.setting for one in planned.beyond({S})] == ["max_age"]
    assert planned.beyond({S, D}) == []


def test_the_subjects_that_would_be_lost_are_named():
    planned = plan("it", {"subjects": ["a", "c.>"]}, {"subjects": ["a", "b", "c.*", "d"]}, STREAM)
    assert str(planned.changes[0]).endswith("messages on b, d would not be stored any more)")


def test_subjects_that_hold_schedules_are_said_to_be_needed_to_publish_later():
    planned = plan("it", {"subjects": ["a"]}, {"subjects": ["a", "schedules.IT.>"]}, STREAM)
    assert "schedules.IT.> would not be stored any more, and the stream could hold nothing that is published later" in (
        str(planned.changes[0])
    )


def test_only_the_named_settings_change_in_what_is_written():
    actual = {"name": "S", "max_msgs": 4, "newer": {"x": [1]}, "metadata": {"_nats.ver": "2.15.1", "team": "a"}}
    planned = plan("it", {"max_msgs": 5, "metadata": {"team": "b"}}, actual, STREAM)
    assert planned.apply_to(actual) == actual | {"max_msgs": 5, "metadata": {"_nats.ver": "2.15.1", "team": "b"}}


@pytest.mark.parametrize(("heading", "judges"), [("Streams", STREAM), ("Consumers", CONSUMER)])
def test_the_docs_name_every_setting_that_is_judged_in_the_column_of_each_risk(heading, judges):
    section = DOCS.split(f"### {heading}\n")[1].split("\n#")[0]
    shown = {}
    for line in section.splitlines()[2:]:
        names, safe, destructive, fixed = (
            (cell.strip() for cell in line.strip("|").split("|")[:4]) if "|" in line else [""] * 4
        )
        for name in re.findall(r"`(\w+)`", names):
            shown[name] = {risk for risk, text in zip((S, D, F), (safe, destructive, fixed), strict=True) if text}
    assert set(shown) == set(judges)
    values = [None, False, True, 0, 3, 5, "limits", "interest", "workqueue", ["a"], ["a", "b"], {"x": "y"}]
    for name, risks in shown.items():
        seen = set()
        for have in values:
            for want in values:
                try:
                    seen.add(judges[name](have, want)[0])
                except (TypeError, AttributeError):
                    continue  # values of another kind
        assert seen == risks, name
