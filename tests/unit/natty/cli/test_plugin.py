import copy

import fisk_host
import pytest
from typer.main import get_command

from natty.cli.app import make_app
from natty.cli.plugin import model_of

ROOT = get_command(make_app())
MODEL = model_of(ROOT)
LEAVES = dict(fisk_host.leaves(MODEL))


def command_at(path):
    """Return the command of the command line itself."""
    command = ROOT
    for name in path:
        command = command.commands[name]
    return command


def parsed(words):
    """Return what a command takes from these words."""
    command, rest = ROOT, list(words)
    while getattr(command, "commands", None):
        command = command.commands[rest.pop(0)]
    with command.make_context("natty", rest) as context:
        return context.params


def test_the_nats_tool_can_read_the_model_and_starts_with_it():
    fisk_host.check(MODEL)
    assert MODEL["name"] == "natty"
    assert {"account", "consumer", "stream", "kv", "pub"} <= {one["name"] for one in MODEL["commands"]}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda flag: flag.update(short=ord("s")), "duplicate short flag s"),
        (lambda flag: flag.update(short="n"), "short is 'n'"),
        (lambda flag: flag.update(placeholder="X"), "placeholder is 'X'"),
        (lambda flag: flag.update(required=True, default=["1"]), "is required and has a default"),
    ],
)
def test_the_check_sees_what_would_stop_the_nats_tool(spoil, said):
    model = copy.deepcopy(MODEL)
    spoil(dict(fisk_host.leaves(model))["consumer", "next"]["flags"][0])
    with pytest.raises(fisk_host.Refused, match=said):
        fisk_host.check(model)


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_is_in_the_model_with_every_flag(path):
    options = [one for one in command_at(path).params if one.param_type_name == "option" and one.name != "help"]
    flags = {one["name"]: one for one in LEAVES[path]["flags"]}
    for option in options:
        name = next(one for one in option.opts if one.startswith("--")).removeprefix("--")
        flag = flags.pop(name)
        assert (flag["boolean"], flag["cumulative"], flag["help"]) == (option.is_flag, option.multiple, option.help)
        for other in option.secondary_opts:
            assert flag.get("negatable") if other == f"--no-{name}" else flags.pop(other.removeprefix("--"))
    assert flags == {}


def all_commands(command, path=()):
    for name, child in command.commands.items():
        yield from all_commands(child, (*path, name)) if getattr(child, "commands", None) else [(*path, name)]


def test_no_command_is_forgotten():
    assert set(LEAVES) == set(all_commands(ROOT))


CALLS = [
    ("consumer", "next", "ORDERS", "billing", "--count", "3", "--nak", "--delay", "30s"),
    ("consumer", "next", "--no-ack", "-r", "ORDERS", "billing"),
    ("consumer", "add", "ORDERS", "billing", "--filter", "a.*", "--filter", "b.>", "--max-pending=7"),
    ("consumer", "pause", "ORDERS", "billing", "1h"),
    ("stream", "info", "ORDERS", "--json"),
    ("kv", "put", "bucket", "key", "value", "--ttl", "1h30m"),
    ("kv", "watch", "bucket", "a.*", "b.*"),
    ("group", "elastic", "add", "ORDERS", "cg", "m2", "m1", "m3"),
    ("pub", "orders.new", "hello world", "-H", "a: b", "-J"),
]


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_what_the_nats_tool_hands_over_means_the_same_as_what_was_typed(words):
    handed = fisk_host.call(MODEL, *words)
    assert handed
    wanted = parsed(words)
    for one in handed:
        got = parsed(one)
        moments = {name for name in ("until",) if name in got}  # a duration from now on
        assert {k: v for k, v in got.items() if k not in moments} == {
            k: v for k, v in wanted.items() if k not in moments
        }


def test_the_nats_tools_own_options_are_handed_over():
    own = ("--server=tls://a:4222", "--context=dev", "--timeout=1m0s", "--js-domain=hub", "--creds=f", "--tlsfirst")
    for one in fisk_host.call(MODEL, *own, "consumer", "next", "ORDERS", "billing"):
        got = parsed(one)
        assert (got["servers"], got["context"], got["timeout"]) == ("tls://a:4222", "dev", 60.0)
        assert (got["domain"], got["creds"], got["stream"], got["consumer"]) == ("hub", "f", "ORDERS", "billing")


def test_arguments_that_were_several_would_change_places():
    model = copy.deepcopy(MODEL)
    command = dict(fisk_host.leaves(model))["consumer", "next"]
    command["args"] = [
        {"name": name, "help": "x", "required": True, "cumulative": False} for name in ("stream", "consumer")
    ]
    handed = {
        (parsed(one)["stream"], parsed(one)["consumer"]) for one in fisk_host.call(model, "consumer", "next", "A", "b")
    }
    assert handed == {("A", "b"), ("b", "A")}


@pytest.mark.parametrize("name", ["tlsfirst", "trace", "no-context"])
def test_no_command_has_an_option_that_the_nats_tool_would_hand_over_in_another_form(name):
    assert not [path for path, one in LEAVES.items() if name in {flag["name"] for flag in one["flags"]}]
