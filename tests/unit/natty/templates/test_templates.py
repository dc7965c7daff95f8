"""What a template makes of the subjects that wait: names, filters, limits; and what can be no template."""

import pytest

from natty import NattyError
from natty.templates import Template, decide

ORDERS = Template(name="orders", subject="orders.*", stream="ORDERS_{1}")
NAMED = {"name": "orders", "subject": "orders.*", "stream": "ORDERS_{1}"}


@pytest.mark.parametrize(
    ("subject", "stream", "published", "expected"),
    [
        ("orders.*", "ORDERS_{1}", "orders.acme", ("ORDERS_acme", "orders.acme")),
        ("*.orders.*", "{2}_OF_{1}", "eu.orders.7", ("7_OF_eu", "eu.orders.7")),
        ("*.orders.*", "ORDERS_{1}", "eu.orders.7", ("ORDERS_eu", "eu.orders.*")),
        ("logs.*.>", "LOGS_{1}", "logs.p1.web1.example.net", ("LOGS_p1", "logs.p1.>")),
        ("a.*", "{1}_{1}", "a.b", ("b_b", "a.b")),
    ],
)
def test_a_subject_belongs_into_one_stream_with_all_that_shares_its_tokens(subject, stream, published, expected):
    template = Template(name="t", subject=subject, stream=stream)
    template.check()
    assert template.place(published) == expected


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"name": "a.b"}, "template name 'a.b': write letters"),
        ({"stream": "ORDERS"}, "gives all streams one name"),
        ({"stream": "ORDERS_{2}"}, r"names \{2\}, and subject orders\.\* has 1 `\*`"),
        ({"stream": "ORDERS_{0}"}, r"names \{0\}"),
        ({"stream": "ORDERS.{1}"}, r"'\.' at character 7"),
        ({"subject": "orders. *"}, "' ' at character 8"),
        ({"subject": "orders..*"}, "empty token"),
        ({"subject": "orders.>.*"}, "must be the last token"),
        ({"max_streams": 0}, "max_streams must be at least 1"),
        ({"settings": {"subjects": ["a"]}}, "the template sets subjects of its streams"),
        ({"settings": {"retention": "workqueue"}}, "a second time"),
        ({"settings": {"retention": "interest"}}, "a second time"),
        ({"settings": {"max_age": 30_000_000_000}}, "60 s at least"),
        ({"settings": {"max_mesages": 1}}, "max_mesages"),
        ({"settings": {"max_msgs": "many"}}, "max_msgs"),
    ],
)
def test_a_template_of_which_no_stream_could_come_is_told(changed, complaint):
    with pytest.raises(NattyError, match=complaint):
        Template(**NAMED | changed).check()


def test_a_stream_is_made_for_each_new_token_only():
    decision = decide(ORDERS, ["orders.b", "orders.a", "orders.c"], {"ORDERS_b"})
    assert decision.make == {"ORDERS_a": "orders.a", "ORDERS_c": "orders.c"}
    assert decision.refused == {}


def test_a_token_that_names_no_stream_is_refused_and_the_others_are_not():
    decision = decide(ORDERS, ["orders.a/b", "orders.a\\b", "orders.fine", "orders." + "l" * 250], set())
    assert decision.make == {"ORDERS_fine": "orders.fine"}
    assert sorted(decision.refused) == sorted(["orders.a/b", "orders.a\\b", "orders." + "l" * 250])
    assert "'/' at character 9" in decision.refused["orders.a/b"]
    assert "has 257 bytes, and 255 is the most" in decision.refused["orders." + "l" * 250]


def test_a_template_makes_as_many_streams_as_it_may_those_that_it_has_among_them():
    template = Template(**NAMED, max_streams=3)
    decision = decide(template, ["orders.a", "orders.b", "orders.c"], {"ORDERS_x", "ORDERS_c"})
    assert decision.make == {"ORDERS_a": "orders.a"}
    assert "has its 3 streams" in decision.refused["orders.b"]


def test_two_tokens_never_share_a_stream_by_a_name_that_runs_together():
    template = Template(name="t", subject="*.*", stream="{1}{2}")
    decision = decide(template, ["a.bc", "ab.c"], set())
    assert decision.make == {"abc": "a.bc"}
    assert "that of a.bc" in decision.refused["ab.c"]


def test_subjects_that_share_a_stream_ask_for_it_once():
    template = Template(name="t", subject="orders.*.*", stream="ORDERS_{1}", max_streams=1)
    assert decide(template, ["orders.a.1", "orders.a.2"], set()).make == {"ORDERS_a": "orders.a.*"}


def test_only_so_many_are_made_at_once_and_nobody_is_refused_for_that():
    decision = decide(ORDERS, [f"orders.{number}" for number in range(10)], set(), at_once=3)
    assert (len(decision.make), decision.refused) == (3, {})


def test_what_the_server_refused_takes_no_place_and_is_tried_again_after_all_others():
    template = Template(**NAMED, max_streams=2)
    failed = {"orders.a": "it is taken"}
    decision = decide(template, ["orders.a", "orders.b", "orders.c"], set(), failed)
    assert (decision.make, decision.refused) == ({"ORDERS_b": "orders.b", "ORDERS_c": "orders.c"}, failed)
    again = decide(template, ["orders.a", "orders.b", "orders.c"], set(), failed, {"orders.a"})
    assert (again.make, again.refused) == (decision.make, failed)
    again = decide(template, ["orders.a", "orders.b"], set(), failed, {"orders.a"})
    assert list(again.make) == ["ORDERS_b", "ORDERS_a"]


def test_a_subject_that_is_none_of_the_templates_is_told():
    decision = decide(ORDERS, ["orders.a.b", "orders", "orders.a"], set())
    assert decision.make == {"ORDERS_a": "orders.a"}
    assert sorted(decision.refused) == ["orders", "orders.a.b"]
