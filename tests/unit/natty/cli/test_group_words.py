"""How filters and mappings are written on the command line."""

import pytest
import typer

from natty.cli.group import elastic, static
from natty.cli.group_shared import mappings_of, partitioning_filter
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


SHARED = "ls list info delete rm member-info memberinfo minfo step-down stepdown sd consume join prompt"
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
