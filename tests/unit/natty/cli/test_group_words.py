"""How filters and mappings are written on the command line."""

import pytest
import typer

from natty.cli.group import elastic, static
from natty.cli.group_shared import mappings_of, partitioning_filter, split_filter, split_keyed_filter
from natty.groups import PartitioningFilter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders.*", PartitioningFilter("orders.*")),
        ("orders.*.*:2,1", PartitioningFilter("orders.*.*", (2, 1))),
        ("orders.*:x.>:", PartitioningFilter("orders.*:x.>")),
        ("*.a:1:2", PartitioningFilter("*.a:1", (2,))),
    ],
)
def test_a_filter_is_a_subject_and_perhaps_its_key(text, expected):
    assert partitioning_filter(text) == expected


@pytest.mark.parametrize("text", ["orders.*:x", "orders.*:1,", "orders.*: ,1", "a:b.*"])
def test_what_follows_a_colon_and_is_no_number_is_told(text):
    with pytest.raises(typer.BadParameter, match="write SUBJECT:1,2"):
        partitioning_filter(text)


def test_mappings_are_members_and_their_partitions():
    assert mappings_of(["a:0,2", "b:1", "idle:"]) == {"a": (0, 2), "b": (1,), "idle": ()}


@pytest.mark.parametrize("texts", [["a"], [":1"], ["a:1;2"], ["a:0", "a:1"]])
def test_what_is_no_mapping_is_told(texts):
    with pytest.raises(typer.BadParameter, match=r"write MEMBER:0,1,2|'a' is mapped twice"):
        mappings_of(texts)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([">", "m1", "m2"], ([], ["m1", "m2"])),
        (["", "m1"], ([], ["m1"])),
        (["foo.*", "m1"], (["foo.*"], ["m1"])),
        (["foo.>", "m1:0,1"], (["foo.>"], ["m1:0,1"])),
        (["m1", "m2"], ([], ["m1", "m2"])),
        (["orders", "m1"], ([], ["orders", "m1"])),
        (["m1:0", "m.2:1"], ([], ["m1:0", "m.2:1"])),
        (["m>1", "*x"], ([], ["m>1", "*x"])),
        (["m1", "foo.*"], ([], ["m1", "foo.*"])),
    ],
)
def test_a_first_word_that_no_member_can_have_is_the_filter_as_in_the_first_version(words, expected):
    assert split_filter(words, None) == expected


def test_filters_that_are_named_leave_the_words_to_the_members():
    assert split_filter(["m1", "m2"], ["a.*"]) == (["a.*"], ["m1", "m2"])


@pytest.mark.parametrize(
    ("words", "filters", "why"),
    [
        (["host1.example", "m2"], None, "is not a member's name; if it is a filter, write --filter 'host1.example'"),
        ([">"], None, "no member follows"),
        (["foo.*", "m1"], ["bar.*"], "--filter names another"),
    ],
)
def test_a_first_word_that_may_be_either_is_not_guessed(words, filters, why):
    with pytest.raises(typer.BadParameter, match=why):
        split_filter(words, filters)


def test_the_filter_of_an_elastic_group_is_written_in_the_old_way_or_in_the_new_one():
    two = [PartitioningFilter("foo.*.*", (2, 1))]
    assert split_keyed_filter(["foo.*.*", "2", "1"], None) == split_keyed_filter([], ["foo.*.*:2,1"]) == two
    assert split_keyed_filter([], None) is split_keyed_filter([], []) is None


@pytest.mark.parametrize(
    ("words", "filters", "why"),
    [
        (["foo.*"], None, "needs the numbers of the wildcards"),
        (["m1", "m2"], None, "write FILTER 1 2"),
        (["foo.*", "1"], ["bar.*"], "--filter names another"),
    ],
)
def test_an_elastic_filter_that_is_not_whole_is_told(words, filters, why):
    with pytest.raises(typer.BadParameter, match=why):
        split_keyed_filter(words, filters)


SHARED = "upgrade ls list info delete rm member-info memberinfo minfo step-down stepdown sd consume join prompt"
OWN = {
    "elastic": "create add drop create-mapping cm createmapping delete-mapping dm deletemapping auto lag watch",
    "static": "create lag watch",
}


@pytest.mark.parametrize(("app", "kind"), [(elastic, "elastic"), (static, "static")], ids=["elastic", "static"])
def test_every_verb_of_cg_is_there_under_all_its_names(app, kind):
    made = typer.main.get_command(app)
    assert set(made.commands) == {*SHARED.split(), *OWN[kind].split()}
    for name, flags in (
        ("rm", {"--force", "-f"}),
        ("create", {"--filter", "--max-buffered-msgs", "--max-buffered-bytes"} if kind == "elastic" else set()),
        ("consume", {"--sleep"}),
        ("info", {"--context"}),
    ):
        assert flags <= {flag for option in made.commands[name].params for flag in option.opts}, name


def test_a_static_group_is_made_balanced_or_mapped_and_filtered():
    create = typer.main.get_command(static).commands["create"]
    assert set(create.commands) == {"balanced", "mapped"}
    for command in create.commands.values():
        assert "--filter" in {flag for option in command.params for flag in option.opts}
