"""What the commands of `natty group` do and print, in the words of `cg`. They run in this process, which is quick."""

import asyncio
import json
import sys
from collections import namedtuple

import pytest
from commands import complaint, printed
from go_groups import ELASTIC, STATIC, Go
from patient import PATIENT

from natty import Natty, NattyError
from natty.cli.app import make_app
from natty.cli.run import run

Done = namedtuple("Done", "status out err")


@pytest.fixture
def served(nats_server):
    """Return a function that runs `work(natty)`, a coroutine, with a client of the session's server."""

    def run_connected(work):
        async def connected():
            async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
                return await work(natty)

        return asyncio.run(connected())

    return run_connected


@pytest.fixture
def natty_command(nats_server, monkeypatch, capsys, tmp_path):
    """Return a function that runs `natty …` and returns how it ended."""
    options = nats_server.connect_options()
    environment = {
        "HOME": str(tmp_path),
        "COLUMNS": "200",
        "NATS_URL": ",".join(options["servers"]),
        "NATS_CA": options["tls_ca"],
        "NATS_CERT": options["tls_cert"],
        "NATS_KEY": options["tls_key"],
        "NATS_TIMEOUT": "60s",
        "NATS_CONNECT_TIMEOUT": "60s",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["natty", *words])
        capsys.readouterr()
        status = run(make_app(), "natty", (NattyError,))
        return Done(status, *capsys.readouterr())

    return command


@pytest.fixture
def stream(served, natty_name):
    name = natty_name("ORDERS")
    served(lambda natty: natty.create_stream(name, subjects=[f"{name}.*"]))
    return name


@pytest.fixture
def partitioned(served, natty_name):
    """A stream whose subjects begin with one of two partitions."""
    name = natty_name("ORDERS")
    transform = {"src": f"{name}.*", "dest": f"{{{{partition(2,1)}}}}.{name}.{{{{wildcard(1)}}}}"}
    served(lambda natty: natty.create_stream(name, subjects=[f"{name}.*"], subject_transform=transform))
    return name


@pytest.fixture
def elastic(natty_command):
    return lambda *words: natty_command("group", "elastic", *words)


@pytest.fixture
def static(natty_command):
    return lambda *words: natty_command("group", "static", *words)


def test_an_elastic_group_from_the_first_to_the_last_command(elastic, stream, served):
    made = printed(elastic("create", stream, "cg", "4", "--filter", f"{stream}.*:1", "--max-buffered-msgs", "1000"))
    assert f"{stream}.* by wildcards 1" in made
    assert printed(elastic("ls", stream)) == "cg\n"
    assert printed(elastic("add", stream, "cg", "m2", "m1")) == "added m2, m1\nmembers: m2, m1\n"
    added = elastic("add", stream, "cg", "m1", "m3", "m4", "m5")
    assert printed(added) == (
        "added m3, m4, m5\na member already: m1\nmembers: m2, m1, m3, m4, m5\n"
        "without a partition, because there are only 4: m5\n"
    )
    assert printed(elastic("drop", stream, "cg", "m4", "m5", "m9")) == (
        "dropped m4, m5\nnot a member: m9\nmembers: m2, m1, m3\n"
    )
    shown = json.loads(printed(elastic("info", stream, "cg", "--json")))
    assert (shown["partitions"], shown["max_messages"], shown["assigned"], shown["buffered"]) == (
        4,
        1000,
        "balanced",
        0,
    )
    assert shown["filters"] == [{"filter": f"{stream}.*", "wildcards": [1]}]
    assert {one["name"]: one["partitions"] for one in shown["members"]} == {"m1": [0, 3], "m2": [1], "m3": [2]}
    lines = printed(elastic("info", stream, "cg")).splitlines()
    assert [line.split() for line in lines if line.split()[0] == "m1"] == [["m1", "0,", "3", "no", "-", "-", "-", "-"]]
    assert served(lambda natty: Go(natty).get(ELASTIC, f"{stream}.cg"))[0].decode() == (
        f'{{"max_members":4,"partitioning_filters":[{{"filter":"{stream}.*","partitioning_wildcards":[1]}}],'
        '"max_buffered_msg":1000,"members":["m2","m1","m3"]}'
    )
    assert printed(elastic("rm", stream, "cg", "-f")) == f"deleted cg of {stream}\n"
    assert printed(elastic("ls", stream, "--json")) == "[]\n"


def test_mappings_in_the_words_of_cg(elastic, stream):
    assert "> by the whole subject" in printed(elastic("create", stream, "cg", "4"))
    assert printed(elastic("cm", stream, "cg", "a:0,2", "b:3,1")) == "a: 0, 2\nb: 3, 1\n"
    again = json.loads(printed(elastic("createmapping", stream, "cg", "b:1,3", "a:0,2", "--json")))
    assert again == {"changed": False, "mappings": {"a": [0, 2], "b": [3, 1]}}
    assert "has its partitions mapped" in complaint(elastic("add", stream, "cg", "m1"))
    assert printed(elastic("delete-mapping", stream, "cg")) == "mappings deleted\n"
    assert printed(elastic("delete-mapping", stream, "cg")) == "there were no mappings\n"
    assert json.loads(printed(elastic("add", stream, "cg", "m1", "--json"))) == {
        "added": ["m1"],
        "members": ["m1"],
        "without_partition": [],
    }


def test_a_static_group_from_the_first_to_the_last_command(static, partitioned):
    made = json.loads(
        printed(static("create", "balanced", partitioned, "cg", "2", "m1", "m2", "--filter", "a.*", "--json"))
    )
    assert made == {
        "stream": partitioned,
        "group": "cg",
        "kind": "static",
        "partitions": 2,
        "filters": ["a.*"],
        "assigned": "balanced",
        "members": ["m1", "m2"],
    }
    assert "members: m2, m1" in " ".join(
        printed(static("create", "mapped", partitioned, "two", "2", "m2:0", "m1:1")).split()
    )
    assert printed(static("list", partitioned)) == "cg\ntwo\n"
    assert (
        printed(static("minfo", partitioned, "two", "m1"))
        == "m1 is a member of two; partitions 1; no instance reads as it\n"
    )
    assert "m9 is not a member of two; no partition" in printed(static("member-info", partitioned, "two", "m9"))
    assert "member m1 of static group two" in complaint(static("sd", partitioned, "two", "m1"))
    printed(static("delete", partitioned, "two", "--force"))
    assert printed(static("ls", partitioned)) == "cg\n"


def test_a_static_group_with_mappings_takes_no_filter(static, partitioned):
    refused = static("create", "mapped", partitioned, "cg", "2", "m1:0,1", "--filter", "a.*")
    assert "read their partitions whole, whatever the filters: leave them out" in complaint(refused)


def test_groups_are_created_with_the_filter_where_the_first_version_has_it(static, elastic, partitioned, stream):
    create = (static, "create", "balanced", partitioned, "cg", "2", ">", "m1", "m2", "--json")
    made = json.loads(printed(create[0](*create[1:])))
    assert (made["filters"], made["members"]) == ([], ["m1", "m2"])
    printed(static("create", "mapped", partitioned, "two", "2", ">", "m2:0", "m1:1"))
    some = json.loads(printed(static("create", "balanced", partitioned, "some", "2", "a.*", "m1", "--json")))
    assert (some["filters"], some["members"]) == (["a.*"], ["m1"])
    refused = static("create", "mapped", partitioned, "cg", "2", "a.*", "m1:0,1")
    assert "read their partitions whole, whatever the filters: leave them out" in complaint(refused)
    keyed = json.loads(printed(elastic("create", stream, "cg", "4", f"{stream}.*", "1", "--json")))
    assert keyed["filters"] == [{"filter": f"{stream}.*", "wildcards": [1]}]


def test_an_elastic_group_of_the_first_version_is_shown_and_converted(elastic, stream, served):
    record = {"max_members": 4, "filter": f"{stream}.*", "partitioning_wildcards": [1], "members": ["m1"]}
    printed(elastic("create", stream, "cg", "4", "--filter", f"{stream}.*:1"))
    served(lambda natty: Go(natty).put(ELASTIC, f"{stream}.cg", json.dumps(record).encode()))
    hint = f"convert it with natty group elastic upgrade {stream} cg"
    assert printed(elastic("info", stream, "cg")).splitlines()[-1] == f"created by pcgroups 0.1: {hint}"
    assert json.loads(printed(elastic("info", stream, "cg", "--json")))["outdated"]
    refused = complaint(elastic("add", stream, "cg", "m2"))
    assert f"convert it (natty group elastic upgrade {stream} cg)" in refused
    assert printed(elastic("upgrade", stream, "cg")) == f"converted record {stream}.cg\n"
    assert json.loads(printed(elastic("upgrade", stream, "cg", "--json"))) == {"converted": []}
    assert hint not in printed(elastic("info", stream, "cg"))
    assert printed(elastic("add", stream, "cg", "m2")).startswith("added m2\n")


def test_a_static_group_of_the_first_version_is_shown_and_converted(static, partitioned, served):
    record = {"max_members": 2, "filter": "a.*", "members": ["m1", "m2"]}

    async def make(natty):
        go = Go(natty)
        await go.make_bucket(STATIC)
        await go.put(STATIC, f"{partitioned}.cg", json.dumps(record).encode())
        await go.make_first_consumer(partitioned, "cg-m1", "m1", ["0.>"], ack_wait=6, durable=True)

    served(make)
    unused = "the filter 'a.*' has no effect, as in pcgroups 0.1: members read whole partitions"
    assert printed(static("info", partitioned, "cg")).splitlines()[-2:] == [
        f"created by pcgroups 0.1: convert it with natty group static upgrade {partitioned} cg",
        unused,
    ]
    assert json.loads(printed(static("info", partitioned, "cg", "--json")))["outdated"]
    assert printed(static("upgrade", partitioned, "cg")) == f"converted consumer cg-m1\n{unused}\n"
    assert printed(static("upgrade", partitioned, "cg")) == f"nothing of cg is of pcgroups 0.1\n{unused}\n"
    assert not json.loads(printed(static("info", partitioned, "cg", "--json")))["outdated"]


def test_deleting_asks_first_and_tells_what_was_there(elastic, stream, served):
    assert f"there is no elastic group cg of stream {stream}" in complaint(elastic("rm", stream, "cg"))
    printed(elastic("create", stream, "cg", "2"))
    printed(elastic("add", stream, "cg", "m1"))
    assert f"Delete elastic group cg of stream {stream} with 1 member?" in complaint(elastic("rm", stream, "cg"))
    served(lambda natty: Go(natty).put(ELASTIC, f"{stream}.cg", b"{"))
    assert "whose record can't be read" in complaint(elastic("rm", stream, "cg"))
    printed(elastic("rm", stream, "cg", "--force"))


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("info", "S", "g"), 1, "there is no elastic group g of stream S"),
        (("create", "NOWHERE", "g", "2"), 1, "there is no stream NOWHERE: make it first"),
        (("create", "S", "a.b", "2"), 1, "group name 'a.b' can't be part of a group's key"),
        (("create", "S", "g", "2", "--filter", "foo"), 1, "filter 'foo' has no wildcard"),
        (("create", "S", "g", "2", "--filter", "foo.*:3"), 1, "has no wildcard 3"),
        (("create", "S", "g", "2", "--filter", "foo.*:x"), 2, "write SUBJECT:1,2"),
        (("create", "S", "g", "0"), 2, "PARTITIONS"),
        (("create", "S", "g", "2", "foo.*"), 2, "needs the numbers of the wildcards"),
        (("create", "S", "g", "2", "m1", "m2"), 2, "write FILTER 1 2"),
        (("upgrade", "S", "g"), 1, "there is no elastic group g of stream S"),
        (("create", "S", "g", "2", "--max-buffered-msgs", "-2"), 2, "--max-buffered-msgs"),
        (("cm", "S", "g", "m1"), 2, "write MEMBER:0,1,2"),
        (("cm", "S", "g", "m1:0", "m1:1"), 2, "'m1' is mapped twice"),
        (("cm", "S", "g", "m1:a"), 2, "write MEMBER:0,1,2"),
        (("add", "S", "g"), 2, "Missing argument 'members'"),
        (("add", "S", "g", "a b"), 1, "member name 'a b': ' ' at character 2 is not allowed"),
        (("step-down", "S", "g", "m"), 1, "there is no elastic group g"),
        (("info", "S", "g", "--context", "nowhere"), 1, "nowhere"),
    ],
)
def test_bad_input_is_told_in_a_sentence(elastic, words, status, why):
    done = elastic(*words)
    assert (done.status, done.out) == (status, "")
    assert "Traceback" not in done.err
    assert why in done.err
    if status == 1:
        assert len(done.err.splitlines()) == 1
