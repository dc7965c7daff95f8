import json
import re
import shlex
import signal
import sys

import pytest
from commands import complaint, printed


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def bucket(natty_name):
    return natty_name("cli")


def test_a_bucket_and_its_keys_from_the_first_to_the_last_command(shell, bucket):
    assert "history:" in printed(shell.natty("kv", "add", bucket, "--history", "3", "--ttl", "1h30m"))
    made = json.loads(printed(shell.natty("kv", "status", bucket, "--json")))
    assert (made["bucket"], made["history"], made["ttl"], made["replicas"]) == (bucket, 3, 5400.0, 1)
    assert printed(shell.natty("kv", "put", bucket, "a.b", "[red]one")) == "1\n"
    assert json.loads(printed(shell.natty("kv", "update", bucket, "a.b", "two", "--revision", "1", "--json"))) == {
        "revision": 2
    }
    assert "is not at revision 1 any more: it is at 2" in complaint(
        shell.natty("kv", "update", bucket, "a.b", "three", "--revision", "1")
    )
    assert f"key 'a.b' exists in bucket {bucket}" in complaint(shell.natty("kv", "create", bucket, "a.b", "x"))
    assert printed(shell.natty("kv", "create", bucket, "c", "x", "--ttl", "1h")) == "3\n"
    assert printed(shell.natty("kv", "get", bucket, "a.b", "--raw")) == "two"
    assert f"{bucket} > a.b, revision 1, 20" in printed(shell.natty("kv", "get", bucket, "a.b", "--revision", "1"))
    assert printed(shell.natty("kv", "keys", bucket, "a.*", "--json")) == '["a.b"]\n'
    assert printed(shell.natty("kv", "ls", bucket)) == "a.b\nc\n"
    assert bucket in json.loads(printed(shell.natty("kv", "ls", "--json")))
    told = printed(shell.natty("kv", "history", bucket, "a.b"))
    assert "[red]one" in told
    assert [line.split()[1] for line in told.splitlines()] == ["operation", "PUT", "PUT"]


def test_markers_are_set_when_a_bucket_is_made_and_a_ttl_below_them_is_refused(shell, bucket):
    assert "marker_ttl:" in printed(shell.natty("kv", "add", bucket, "--history", "3", "--marker-ttl", "20s"))
    assert json.loads(printed(shell.natty("kv", "status", bucket, "--json")))["marker_ttl"] == 20.0
    told = complaint(shell.natty("kv", "put", bucket, "k", "v", "--ttl", "2s"))
    assert f"a ttl of 2 s is too short for bucket {bucket}" in told
    assert "at least 20 s" in told
    command = re.search(r"natty (stream edit \S+ --subject-del-markers-ttl \S+)\)", told)[1]
    printed(shell.natty(*command.split(), "--force"))
    assert printed(shell.natty("kv", "put", bucket, "k", "v", "--ttl", "2s")) == "1\n"


def test_destruction_asks_first_and_is_done_with_force(shell, bucket):
    printed(shell.natty("kv", "add", bucket))
    printed(shell.natty("kv", "put", bucket, "k", "v"))
    for command in (("purge", bucket, "k"), ("rm", bucket)):
        assert "give --force" in complaint(shell.natty("kv", *command))
    assert printed(shell.natty("kv", "get", bucket, "k", "--raw")) == "v"
    assert "is not at revision 9" in complaint(shell.natty("kv", "del", bucket, "k", "--revision", "9", "--force"))
    assert printed(shell.natty("kv", "del", bucket, "k", "--force")) == f"deleted k of {bucket}\n"
    assert f"there is no key 'k' in bucket {bucket}" in complaint(shell.natty("kv", "get", bucket, "k", "--json"))
    assert printed(shell.natty("kv", "rm", bucket, "-f")) == f"deleted {bucket}\n"
    for command in (("rm", bucket, "-f"), ("watch", bucket)):
        assert complaint(shell.natty("kv", *command)) == f"natty: there is no bucket {bucket}"


def test_a_value_that_is_no_text_comes_from_standard_input_and_goes_out_as_it_is(shell, bucket):
    printed(shell.natty("kv", "add", bucket))
    (shell.folder / "value").write_bytes(bytes(range(256)))
    natty = f"{shlex.quote(sys.executable)} -m natty kv"
    assert printed(shell.finish(shell.execute(["sh", "-c", f"{natty} put {bucket} k < value"]))) == "1\n"
    printed(shell.finish(shell.execute(["sh", "-c", f"{natty} get {bucket} k --raw > out"])))
    assert (shell.folder / "out").read_bytes() == bytes(range(256))
    found = json.loads(printed(shell.natty("kv", "get", bucket, "k", "--json")))
    assert (found["key"], found["revision"], "value_base64" in found) == ("k", 1, True)


def test_a_watch_prints_what_is_there_and_what_comes(shell, bucket, served):
    async def put(natty):
        await natty.put(bucket, "a.1", b"old", create_bucket=True)

    async def change(natty):
        await natty.put(bucket, "a.2", b"new")
        await natty.put(bucket, "b", b"not asked for")
        await natty.delete(bucket, "a.1")

    served(put)
    process = shell.start("natty", "kv", "watch", bucket, "a.*", "--json", "--count", "3")
    assert process.stderr.readline() == f"1 key; watching {bucket}\n"
    served(change)
    done = shell.finish(process)
    events = [json.loads(line) for line in done.out.splitlines()]
    assert done.status == 0
    assert [(one["operation"], one["key"], one.get("value")) for one in events] == [
        ("PUT", "a.1", "old"),
        ("PUT", "a.2", "new"),
        ("DELETED", "a.1", None),
    ]

    process = shell.start("natty", "kv", "watch", bucket)
    assert process.stderr.readline() == f"2 keys; watching {bucket}\n"
    process.send_signal(signal.SIGINT)
    done = shell.finish(process)
    assert (done.status, done.complaint) == (130, "natty: interrupted")
    assert done.out.splitlines()[0].endswith(f"PUT {bucket} > a.2: new")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("put", "b", "k", "v", "--ttl", "soon"), "'soon' is not a duration; write 30s, 1h30m or 7d"),
        (("put", "b", "k", "v", "--ttl", "100000d"), "a ttl of 8.64e+09 s is too long: write at most 36500d"),
        (("add", "b", "--history", "65"), "Invalid value for '--history'"),
        (("del", "b", "--revision", "3"), "a bucket has no revision"),
        (("watch", "b", "--history", "--updates-only"), "contradict each other"),
    ],
)
def test_a_wrong_option_is_a_matter_of_usage(shell, arguments, words):
    done = shell.natty("kv", *arguments)
    assert (done.status, done.out) == (2, "")
    assert words in " ".join(done.err.split())


def test_a_bad_name_and_other_settings_are_told_in_a_sentence(shell, bucket):
    assert "key 'a b': ' ' at character 2 is not allowed there" in complaint(shell.natty("kv", "get", bucket, "a b"))
    assert "' ' at character 2 is not allowed" in complaint(shell.natty("kv", "add", "a b"))
    printed(shell.natty("kv", "add", bucket, "--ttl", "5s"))
    assert "max_age is 5 s, wanted 7 s" in complaint(shell.natty("kv", "add", bucket, "--ttl", "7"))
