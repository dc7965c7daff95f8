"""`natty kv …` in this process: settings of a new bucket, and an earlier value stored again."""

import json

import pytest
from commands import complaint, printed


@pytest.fixture
def kv(natty_commands):
    """Run `natty kv …`."""
    return lambda *words: natty_commands("kv", *words)


@pytest.fixture
def bucket(kv, natty_name):
    name = natty_name("kv")
    printed(kv("add", name, "--history", "5"))
    return name


def test_a_bucket_is_made_with_the_settings_of_a_stream(kv, natty_commands, natty_name):
    name = natty_name("kv")
    again = ("--republish-source", f"$KV.{name}.>", "--republish-destination", f"news.{name}.>")
    printed(kv("add", name, "--compress", "--metadata", "owner=us", *again))
    made = json.loads(printed(natty_commands("stream", "info", f"KV_{name}", "--json")))["config"]
    assert made["compression"] == "s2"
    assert made["metadata"]["owner"] == "us"
    assert made["republish"] == {"src": f"$KV.{name}.>", "dest": f"news.{name}.>"}
    printed(kv("add", name, "--metadata", "owner=us"))
    assert "metadata is" in complaint(kv("add", name, "--metadata", "owner=them"))


def test_an_earlier_value_is_stored_again(kv, bucket):
    for value in ("one", "two"):
        printed(kv("put", bucket, "k", value))
    assert printed(kv("revert", bucket, "k", "1")) == "3\n"
    assert printed(kv("get", bucket, "k", "--raw")) == "one"
    printed(kv("del", bucket, "k", "--force"))
    assert json.loads(printed(kv("revert", bucket, "k", "2", "--json"))) == {"revision": 5}
    assert printed(kv("get", bucket, "k", "--raw")) == "two"
    assert "holds no revision 99 of key 'k'" in complaint(kv("revert", bucket, "k", "99"))
    assert "there is no key 'k'" in complaint(kv("revert", bucket, "k", "4"))  # the deletion
