"""The part of the `nats` tool that loads a plugin and calls it, rebuilt from its sources.

choria-io/fisk, model.go and app_plugin.go (the JSON fields, and how a call is built), flags.go, args.go and app.go (the
reasons for which the whole tool refuses to start); nats-io/natscli, nats/main.go (its own options).
"""

import itertools

GLOBALS = {
    "server": "s", "help": "h", "version": "", "user": "", "password": "", "token": "", "connection-name": "",
    "creds": "", "nkey": "", "jwt": "", "seed": "", "tlscert": "", "tlskey": "", "tlsca": "", "tlsfirst": "",
    "tls-first": "", "timeout": "", "socks-proxy": "", "js-api-prefix": "", "js-event-prefix": "", "js-domain": "",
    "inbox-prefix": "", "domain": "", "colors": "", "context": "", "trace": "", "no-context": "", "help-long": "",
    "help-man": "", "help-llm": "", "help-compact": "", "completion-bash": "", "completion-script-bash": "",
    "completion-script-zsh": "", "fisk-introspect": "",
}  # fmt: skip
"""The tool's own options, and their short forms."""
GLOBAL_SWITCHES = {"help", "version", "tlsfirst", "tls-first", "trace", "no-context"}

FIELDS = {
    "application": {
        "name": str, "help": str, "cheat": str, "version": str, "author": str, "cheats": dict, "cheat_tags": list,
        "llm_extra_info": str, "args": list, "commands": list, "flags": list,
    },
    "command": {
        "name": str, "aliases": list, "help": str, "help_long": str, "hidden": bool, "default": bool, "tags": list,
        "args": list, "commands": list, "flags": list,
    },
    "flag": {
        "name": str, "help": str, "short": int, "default": list, "envar": str, "place_holder": str, "required": bool,
        "hidden": bool, "boolean": bool, "negatable": bool, "cumulative": bool, "completions": list,
    },
    "arg": {
        "name": str, "help": str, "default": list, "envar": str, "place_holder": str, "required": bool, "hidden": bool,
        "cumulative": bool,
    },
}  # fmt: skip
"""The JSON fields of each part of a model, and the types that Go decodes into them."""


class Refused(Exception):
    """The tool would not start with this plugin, or would refuse this call."""


def leaves(model, path=()):
    """Yield (path, command) of every command without subcommands."""
    for one in model.get("commands") or []:
        here = (*path, one["name"])
        if one.get("commands"):
            yield from leaves(one, here)
        else:
            yield here, one


def check(part, kind="application"):
    """Refused unless Go knows every field and its type, and the whole passes fisk's own checks."""
    for name, value in part.items():
        if type(value) is not FIELDS[kind].get(name):
            raise Refused(f"{kind} {part['name']!r}: {name} is {value!r}")
    if kind in ("application", "command"):
        if not part["name"] or not part["help"]:
            raise Refused(f"{part['name']!r} has no name or no help")
        if part.get("commands") and part.get("args"):
            raise Refused(f"{part['name']} mixes arguments with commands")
        for plural in ("commands", "flags", "args"):
            for one in part.get(plural) or []:
                check(one, plural.removesuffix("s"))
        _unique([one["name"] for one in part.get("commands") or []], "command")
        _flags(part)
        _args(part)


def _flags(command):
    own = [one for one in command.get("flags") or [] if one["name"] not in GLOBALS]
    _unique([one["name"] for one in own], "long flag")
    _unique(
        [chr(one["short"]) for one in own if "short" in one] + [one for one in GLOBALS.values() if one], "short flag"
    )
    for one in own:
        if one.get("required") and one.get("default"):
            raise Refused(f"--{one['name']} is required and has a default")
        if len(one.get("default") or []) > 1 and not one["cumulative"]:
            raise Refused(f"--{one['name']} has several defaults")


def _args(command):
    args = command.get("args") or []
    _unique([one["name"] for one in args], "argument")
    if any(one["cumulative"] for one in args[:-1]):
        raise Refused(f"{command['name']}: something follows a repeated argument")
    if any(later.get("required") and not one.get("required") for one, later in itertools.pairwise(args)):
        raise Refused(f"{command['name']}: a required argument follows one that is not")


def _unique(names, what):
    for name in names:
        if names.count(name) > 1:
            raise Refused(f"duplicate {what} {name}")


def call(model, *words):
    """Return every list of words with which the tool may start the plugin for this call.

    Go iterates over the given options in no particular order; this also exchanges single arguments.
    """
    path, words = [], list(words)
    level = model
    while children := {one["name"]: one for one in level.get("commands") or []}:
        name = words.pop(next(place for place, word in enumerate(words) if not word.startswith("-")))
        if name not in children:
            raise Refused(f"there is no command {name}")
        level = children[name]
        path.append(name)
    flags = {one["name"]: one for one in level.get("flags") or []}
    shorts = {chr(one["short"]): one["name"] for one in flags.values() if "short" in one} | {
        short: name for name, short in GLOBALS.items() if short
    }
    given, proxied, arguments = [], [], []
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name if word.startswith("--") else shorts[name]
        positive = name.removeprefix("no-")
        if name not in flags and flags.get(positive, {}).get("negatable"):
            given.append(f"--no-{positive}")
        elif name in GLOBALS:
            value = "true" if name in GLOBAL_SWITCHES else value if equals else words.pop(0)
            proxied += [f"--{name}={value}"] if name in flags else []
        elif name not in flags:
            raise Refused(f"unknown long flag {name}")
        elif flags[name]["boolean"]:
            given.append(f"--{name}")
        else:
            given.append(f"--{name}={value if equals else words.pop(0)}")
    return [[*path, *first, *given, *proxied, *last] for first, last in _handed_over(level, arguments)]


def _handed_over(command, arguments):
    """Yield the words of single arguments in every order, and those of a repeated argument in their order."""
    args = command.get("args") or []
    if len([one for one in args if one.get("required")]) > len(arguments):
        raise Refused("a required argument is not provided")
    single = [one for one in args if not one["cumulative"]]
    if len(arguments) > len(single) and len(single) == len(args):
        raise Refused("unexpected argument")
    for order in itertools.permutations(arguments[: len(single)]):
        yield list(order), arguments[len(single) :]
