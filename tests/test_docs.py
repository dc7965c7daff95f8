"""What the documents say is true: commands exist and are described, examples run, links lead somewhere."""

import ast
import json
import re
import shlex
import subprocess
import tomllib
from collections import Counter
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from pages import (
    EXCEPT_PYTHON,
    EXCEPT_SHELL,
    LANGUAGES,
    PAGES,
    TUTORIALS,
    blocks_of,
    commands_of,
    exceptions_to,
    lines_of,
)
from ruamel.yaml import YAML
from sentences import is_said, texts_of
from tutorial import sections_of, steps_of
from typer.main import get_command

from capture.cli.app import make_app as make_capture_app
from capture.config.load import load
from capture.pipelines.definition import Pipeline
from natty.cli.app import make_app as make_natty_app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs" / "tour.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(text) if found == language]


def commands(app, name: str) -> dict:
    """Every command by its full name."""
    found = {}

    def walk(command, path):
        children = getattr(command, "commands", {})
        for child_name, child in children.items():
            walk(child, f"{path} {child_name}")
        if not children:
            found[path] = command

    walk(get_command(app), name)
    return found


COMMANDS = commands(make_natty_app(), "natty") | commands(make_capture_app(), "capture")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_is_in_the_docs(name):
    assert COMMANDS[name].help
    assert f"`{name}" in CLI
    undescribed = [p.name for p in COMMANDS[name].params if p.name != "help" and not getattr(p, "help", "")]
    assert undescribed == []


@pytest.mark.parametrize("name", re.findall(r"^\| `(\w+ (?:\w+ ?)+)", CLI, re.MULTILINE))
def test_the_docs_name_no_command_that_is_not_there(name):
    known = [command for command in COMMANDS if name.startswith(command)]
    assert known, f"docs/cli.md names {name!r}"


@pytest.mark.parametrize(
    "line", dict.fromkeys(line for page in PAGES for line in lines_of(page) if line not in commands_of(page))
)
def test_a_line_that_no_test_carries_out_names_what_there_is(line):
    words = line.split("#")[0].removeprefix("sudo -u capture ").split()
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[:2] == ["docker", "compose"]:  # tests/acceptance/examples/test_compose_stack.py runs the file
        assert words[2] in ("up", "run", "exec", "down")
        assert (ROOT / "docker-compose.yml").exists()
    elif "pip" in Path(words[0]).name:
        extras = {extra for found in re.findall(r"\[([\w,]+)\]", line) for extra in found.split(",")}
        assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)
    elif (program := Path(words[0]).name) in ("natty", "capture"):
        assert any(" ".join([program, *words[1:]]).startswith(command) for command in COMMANDS)


def test_make_lists_each_target_with_what_it_does():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert sorted(re.findall(r"^  make (\S+) +\S", listed, re.MULTILINE)) == sorted(phony.split())


_, _, NIGHTLY = (ROOT / "examples" / "nightly.py").read_text().partition('"""\n\n')  # run by test_examples.py


def test_the_cron_job_of_the_docs_is_the_example_and_has_ten_lines():
    assert NIGHTLY in blocks((ROOT / "docs" / "election.md").read_text(), "python")
    assert len([line for line in NIGHTLY.splitlines() if line.strip()]) <= 10


def test_the_readme_has_a_service_a_cron_job_and_a_capture_of_ten_lines_and_900_words_in_all():
    assert len(README.split()) <= 900
    assert NIGHTLY in blocks(README, "python")
    service = [line for line in blocks(README, "python")[0].splitlines() if line.strip()]
    capture = [line for line in blocks(README, "toml")[0].splitlines() if line.strip() and not line.startswith("#")]
    assert len(service) <= 10
    assert len(capture) <= 10


@pytest.mark.parametrize(
    "text", [blocks(page, "toml")[0] for page in (README, TOUR, CLI)], ids=["README", "tour", "cli"]
)
def test_a_capture_toml_of_the_docs_is_valid(text, tmp_path):
    path = tmp_path / "capture.toml"
    path.write_text(text)
    assert load(path, environment={}).stream == "ORDERS"


def test_the_reference_shows_every_setting_with_its_default(tmp_path):
    path = tmp_path / "capture.toml"
    path.write_text(blocks(CLI, "toml")[0])
    shown = load(path, environment={})
    default = load(None, {"stream": "ORDERS", "store": "file:///var/lib/orders", "nats": shown.nats}, environment={})
    assert shown == default
    text = blocks(CLI, "toml")[0]
    for name in (*default.__struct_fields__, *default.limits.__struct_fields__, *default.compaction.__struct_fields__):
        assert name in text


def test_the_page_of_pipelines_shows_every_setting_with_its_default_and_its_examples_are_right(tmp_path):
    text = (ROOT / "docs" / "pipelines.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", text[: text.index("## How a table is kept")], re.MULTILINE))
    for one in msgspec.structs.fields(Pipeline):
        shown = rows[one.name].strip("` ")
        if one.name not in ("name", "sql", "python", "mode", "key", "schema", "inputs"):
            assert shown == json.dumps(one.default_factory() if one.default is msgspec.NODEFAULT else one.default)
    for number, example in enumerate(one for one in blocks(text, "toml") if "[[pipeline]]" in one):
        path = tmp_path / f"{number}.toml"
        path.write_text('store = "lake"\nstreams = ["ORDERS", "KV_config"]\n' + example)
        assert load(path, environment={}, pipelines=True).pipeline


PROSE = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "examples").glob("**/*.md")),
]


def anchors(page):
    """Return what a link to a heading of a page ends in, as GitHub writes it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        place, _, heading = target.partition("#")
        if not target.startswith("https://"):
            page = path.parent / place if place else path
            assert page.exists(), f"{path.name} links to {target}"
            assert not heading or heading in anchors(page), f"{path.name} links to {target}"


def test_the_on_error_of_the_docs_is_that_of_the_example():
    shown, _, call = blocks((ROOT / "docs" / "consume.md").read_text(), "python")[1].partition("\n\n\n")
    example = (ROOT / "examples" / "handler_errors.py").read_text()
    assert shown in example
    assert call.strip() in example


SITE = YAML(typ="rt").load((ROOT / "mkdocs.yml").read_text())
NEW_PAGES = [*TUTORIALS, ROOT / "docs" / "index.md"]


def in_nav(entries):
    for entry in entries:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else in_nav(target)


def test_each_page_is_in_the_sites_navigation_once():
    made = {f"reference/{name}-commands.md" for name in ("natty", "capture")}  # by tools/site_hooks.py
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.md")}
    assert sorted(in_nav(SITE["nav"])) == sorted(pages | made)


def test_the_reference_names_each_module_that_there_is():
    for page in ("natty", "capture"):
        for name in re.findall(r"^::: (\S+)", (ROOT / "docs" / "reference" / f"{page}.md").read_text(), re.MULTILINE):
            module, _, attribute = name.rpartition(".")
            try:
                found = hasattr(import_module(module), attribute)
            except ModuleNotFoundError:
                found = False
            assert found or import_module(name), name


EVERY_PAGE = sorted((ROOT / "docs").glob("**/*.md"))


def shell_commands(text):
    """The command lines of `natty` and `capture` in the shell blocks of a page, as words."""
    for body in blocks(re.sub(r"^```sh .*$", "```sh", text, flags=re.MULTILINE), "sh"):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] in ("natty", "capture"):
                yield words[: words.index("--")] if "--" in words else words


@pytest.mark.parametrize("path", EVERY_PAGE, ids=lambda path: path.stem)
def test_a_page_names_commands_and_options_that_exist(path):
    for words in shell_commands(path.read_text()):
        full = next((" ".join(words[:n]) for n in (5, 4, 3, 2) if " ".join(words[:n]) in COMMANDS), "")
        assert full, f"{path.name}: {words}"
        options = {one for parameter in COMMANDS[full].params for one in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= options, f"{path.name}: {words}"


OWN_MODULES = {"sqlite_store", "msgpack_blocks"}  # of extending.md, which own_code.py runs


@pytest.mark.parametrize("path", EVERY_PAGE, ids=lambda path: path.stem)
def test_the_python_of_a_page_can_be_compiled_and_its_imports_exist(path):
    for body in blocks(path.read_text(), "python"):
        tree = ast.parse(body)
        compile(body, path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    import_module(name.name)
            elif isinstance(node, ast.ImportFrom) and node.module not in OWN_MODULES:
                exec(f"from {node.module} import {', '.join(name.name for name in node.names)}", {})


@pytest.mark.parametrize("path", [*PAGES, *TUTORIALS], ids=lambda path: path.stem)
def test_each_fence_has_a_language_and_commands_are_shell(path):
    for block in blocks_of(path):
        assert block.language in LANGUAGES, block.body
        assert block.language != "text" or not block.body.startswith(("natty ", "capture ", "pip "))


def test_what_the_tests_of_the_pages_leave_out_is_in_the_pages_and_what_carries_it_out_exists():
    python = [one for path in PAGES for one in blocks_of(path) if one.language == "python"]
    found = Counter(key for one in python for key in exceptions_to(one))
    assert found == Counter(EXCEPT_PYTHON.keys()) + Counter({("spark.md", ""): 5})  # six, which that test counts
    lines = [line for path in PAGES for line in lines_of(path)]
    assert [begin for begin in EXCEPT_SHELL if not any(line.startswith(begin) for line in lines)] == []
    for reason in {*EXCEPT_PYTHON.values(), *EXCEPT_SHELL.values()}:
        assert all((ROOT / name).exists() for name in re.findall(r"tests/[\w/]+\.py", reason)), reason


def tables_of(path):
    """The settings of `capture.toml` that a page shows. streams.md has a file of another kind."""
    return [] if path.name == "streams.md" else blocks(path.read_text(), "toml")


@pytest.mark.parametrize("path", [path for path in EVERY_PAGE if tables_of(path)], ids=lambda path: path.stem)
def test_the_settings_that_a_page_shows_are_valid(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "catalog.properties").touch(0o600)
    for text in tables_of(path):
        shown = tomllib.loads(text)
        read = [name for one in shown.get("pipeline", []) for name in one.get("inputs", [])]
        rest = {"store": "lake"} if "streams" in shown else {"store": "lake", "stream": next(iter(read), "ORDERS")}
        lines = [f'{name} = "{value}"' for name, value in rest.items() if name not in shown]
        (tmp_path / "capture.toml").write_text("\n".join([*lines, text]))
        assert load(tmp_path / "capture.toml", environment={}, pipelines=True)


@pytest.mark.parametrize("path", NEW_PAGES, ids=lambda path: path.stem)
def test_the_python_and_the_toml_of_a_page_for_newcomers_are_right(path, tmp_path):
    for step in steps_of(path.read_text()):
        if step.language == "python":
            assert step.title, "a reader saves it: give it a name"
            compile(step.body, step.title, "exec")
        elif step.language == "toml":
            (tmp_path / step.title).write_text(step.body)
            assert load(tmp_path / step.title, environment={}, pipelines=True).stream == "ORDERS"


def test_a_tutorial_that_begins_as_another_one_names_sections_of_it():
    for path in TUTORIALS:
        for order in (step.order for step in steps_of(path.read_text()) if step.order.startswith("as ")):
            _, other, *numbers = order.split()
            text = (path.parent / other).read_text()
            assert all(sections_of(text, [number]) for number in numbers), order


def test_each_sentence_of_the_page_of_troubles_is_one_that_the_programs_can_say():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    texts = [" ".join(text.split()) for text in texts_of([ROOT / "natty", ROOT / "capture"])]
    sentences = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(sentences) > 40
    assert [sentence for sentence in sentences if not is_said(sentence, texts)] == []
