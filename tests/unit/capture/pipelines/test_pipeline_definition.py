import pytest

from capture.errors import ConfigError
from capture.pipelines.definition import Pipeline, order

REVENUE = "SELECT country, day, sum(total) AS revenue FROM ORDERS GROUP BY country, day"


def upsert(**said):
    return Pipeline(**{"name": "revenue", "sql": REVENUE, "mode": "upsert", "key": ["country", "day"]} | said)


def test_pipelines_of_the_issue_are_right():
    upsert().check()
    Pipeline(name="customers", kind="latest", inputs=["ORDERS"], key="subject:2").check()
    Pipeline(name="features", python="my.jobs:features", inputs=["ORDERS"], mode="append").check()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"name": "a b"}, "a name begins with a letter"),
        ({"python": "a:b"}, "give one of sql"),
        ({"sql": ""}, "give one of sql"),
        ({"mode": None}, "mode is missing"),
        ({"key": []}, "needs a key"),
        ({"key": ["nowhere", "day"]}, "its key nowhere is not a column of its query: country, day, revenue"),
        ({"key": "country"}, "its key must be what it groups by: country, day"),
        ({"partition": ["revenue"]}, "partition names revenue, which is not in its key"),
        ({"mode": "append", "key": []}, "a row may depend on other messages: it groups rows"),
        ({"mode": "append", "key": ["day"]}, "it has no key"),
        ({"schedule": "sometimes"}, 'schedule is "every 5m" or a cron expression'),
        ({"sql": "SELECT a FROM"}, "can't be parsed"),
    ],
)
def test_a_pipeline_that_can_not_be_is_refused_by_its_name(said, why):
    with pytest.raises(ConfigError) as error:
        upsert(**said).check()
    assert why in str(error.value)
    assert str(said.get("name", "revenue")) in str(error.value)


def follow(**said):
    return upsert(trigger="stream", **said)


def test_pipelines_that_compute_rows_of_new_messages_can_follow_a_stream():
    follow().check()
    follow(sql="SELECT country, day FROM ORDERS").check()
    Pipeline(name="customers", kind="latest", inputs=["ORDERS"], key="subject", trigger="stream").check()
    Pipeline(name="f", python="my.jobs:f", inputs=["ORDERS"], mode="append", trigger="stream").check()
    assert (follow().times().every, follow(schedule="every 1s").times().every) == (5.0, 1.0)
    assert upsert().times().every == 300.0
    assert follow().definition == upsert().definition, "it may change at any time"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"schedule": "0 3 * * *"}, "its schedule can't be a cron expression"),
        ({"mode": "replace"}, 'mode = "replace" needs all messages. Use trigger = "schedule"'),
        (
            {"sql": "SELECT country, day, count(DISTINCT a) AS n FROM ORDERS GROUP BY 1, 2"},
            "needs others again: COUNT(DISTINCT a) needs all messages of a group",
        ),
        ({"sql": "SELECT country, day FROM ORDERS JOIN B USING (x)"}, "and it reads 2 tables"),
        ({"sql": "SELECT country, day FROM ORDERS ORDER BY 1"}, "needs others again: it has an ORDER BY"),
    ],
)
def test_a_pipeline_that_has_to_read_all_messages_can_not_follow_a_stream(said, why):
    with pytest.raises(ConfigError) as error:
        follow(**said).check()
    assert why in str(error.value)
    assert str(error.value).startswith("pipeline revenue: ")


def test_pipelines_follow_those_that_they_read():
    one = upsert(name="one", sql="SELECT a FROM two", key="a")
    two = upsert(name="two", sql="SELECT a FROM S", key="a")
    assert [each.name for each in order([one, two], ["S"])] == ["two", "one"]


@pytest.mark.parametrize(
    ("reads", "why"),
    [
        ({"one": "two", "two": "one"}, "in a circle: one ← two ← one"),
        ({"one": "one"}, "in a circle: one ← one"),
        ({"one": "T"}, "pipeline one reads T, which is neither a captured stream nor a pipeline; there are: S, one"),
        ({"S": "S"}, "another pipeline or a stream has this name"),
    ],
)
def test_a_graph_that_has_no_order_is_refused(reads, why):
    pipelines = [upsert(name=name, sql=f"SELECT a FROM {read}", key="a") for name, read in reads.items()]
    with pytest.raises(ConfigError) as error:
        order(pipelines, ["S"])
    assert why in str(error.value)
