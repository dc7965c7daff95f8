"""The rules of docs/architecture.md, read off the code with `ast`."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from natty.errors import how_to_install

ROOT = Path(__file__).parents[1]
FILES = sorted(path for package in ("natty", "capture") for path in (ROOT / package).rglob("*.py"))

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"`([\w./]+)`")
FILE_NAMED = re.compile(r"(?<![\w/.-])((?:natty|capture|tests|examples)/[\w/.-]+\.(?:py|md|html|conf|toml))\b")

MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}

# Lower rows first: a folder or file imports from its own row and from those before it, whatever the import is for.
LAYERS = {
    "natty": [
        *["errors", "names", "config", "wire", "jetstream", "pulling", "publishing", "streams"],
        *[
            "consuming",
            "kv",
            "elections",
            "templates",
            "groups",
            "client",
            "blocking",
            "metrics",
            "__init__",
            "testing",
            "cli",
        ],
        "__main__",
    ],
    "capture": [
        *[
            "errors",
            "stores",
            "archive",
            "ingest",
            "decoders",
            "partitioners",
            "formats",
            "maintenance",
            "iceberg",
            "pipelines",
        ],
        *[
            "spark",
            "config",
            "reading",
            "spark/jetstream",
            "verification",
            "restoring",
            "node",
            "__init__",
            "testing",
            "cli",
        ],
        "__main__",
    ],
}
HEAVY = {
    "pyspark": {"capture/spark/"},
    "py4j": {"capture/spark/"},
    "pyarrow": {"capture/formats/", "capture/spark/", "capture/iceberg/", "capture/reading/", "capture/cli/cat.py"}
    | {
        "capture/maintenance/merge/",
        "capture/testing.py",
        "capture/restoring/archive.py",
        "capture/restoring/pick.py",
    },
    "sqlglot": {"capture/pipelines/sql.py", "capture/pipelines/parsing.py", "capture/pipelines/group_queries.py"},
    "duckdb": {"capture/reading/duck.py"},
    "google_crc32c": {"capture/restoring/s2.py"},
    "pyiceberg": {"capture/iceberg/", "capture/cli/demo/tables.py"},  # the demo reads tables as its users do
    "requests": {"capture/iceberg/foreign"},
    "sqlalchemy": {"capture/iceberg/foreign_sql.py"},
    "aiohttp": {"natty/metrics/http.py", "capture/node/status/iceberg_rest.py", "capture/node/status/status_page.py"},
    "pyroaring": {"capture/archive/sequences.py"},
    "obstore": {"capture/stores/object_client.py", "capture/stores/object.py"},
    "cryptography": {
        "natty/config/tls.py",
        "capture/archive/encryption.py",
        "capture/archive/signing.py",
        "capture/maintenance/merge/scratch_file.py",
    },
    "cramjam": {
        "capture/archive/index/page.py",
        "capture/formats/codecs.py",
        "capture/restoring/archive.py",
        "capture/restoring/s2.py",
    },
    "typer": {"natty/cli/", "capture/cli/"},
    "rich": {"natty/cli/", "capture/cli/"},
    "prometheus_client": {
        "natty/metrics/telemetry.py",
        "capture/node/metrics.py",
        "capture/node/worker_metrics.py",
    },
    "opentelemetry": {"natty/wire/tracing.py"},
    "uvloop": {"natty/cli/run.py"},
    "pytest": {"natty/testing/plugin.py"},
    "nats": {"natty/wire/nats_py.py"},
}
ANY_KEYWORDS = {
    "natty/config/units.py: check_seconds": "it is given whatever a user wrote, and checks that",
    "natty/cli/tables.py: render_str": "overrides a method of rich",
    "natty/cli/late.py: __init__": "overrides a method of typer",
    "capture/reading/pruned.py: scanner": "overrides a method of pyarrow",
}
LIBRARY_MAIN = {"__init__", "__main__"}
# Decorators, a layout, commands, kinds of settings; events of the election.
PARTICIPLES = {"keyed", "typed", "dated", "balanced", "mapped", "fixed", "raised"}
PARTICIPLES |= {"asked", "connected", "joined", "marked", "refused", "stored"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "service", "misc", "base", "core"}
SHARED_STEMS = 5  # pairs of files of one package that have the same name; a name of three files counts as two pairs
COMMON_STEMS = {"__init__", "__main__", "contract", "choose"}
SMALLEST_FILE = 40  # lines, unless the file is one of several choices
LARGEST_FILE = 400  # lines
LARGEST_NOUN = 600  # lines of a file that is one noun in one class
ONE_NOUN = {
    "natty/client.py",
    "natty/wire/connection.py",
    "natty/consuming/work.py",
    "natty/pulling/pull.py",
    "natty/elections/machine.py",
    "natty/publishing/publisher.py",
}
THIN = 3  # statements of a method of the facade, its docstring not counted


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def imports_of(path: Path) -> set[str]:
    """Return the top-level packages that a file imports when it runs: not under TYPE_CHECKING."""
    skipped = {
        id(child)
        for node in nodes_of(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    return {module.partition(".")[0] for node, module, _ in _imports_of(path) if id(node) not in skipped}


@cache
def imported_files(path: Path) -> frozenset[Path]:
    """Return the files of its own package that a file imports."""
    package, found = path.relative_to(ROOT).parts[0], set()
    for _, module, name in _imports_of(path):
        if module.partition(".")[0] == package:
            found.add(MODULES.get(f"{module}.{name}") or MODULES[module])
    return frozenset(found - {path})


def _imports_of(path: Path):
    """Yield the node, the module and the name of every import; the name is empty for a module alone."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node, node.module, alias.name) for alias in node.names)


def row_of(path: Path) -> str:
    """Return the row of a file: its folder, or a folder in it that has a row of its own."""
    package, *parts = path.relative_to(ROOT).parts
    inner = "/".join(parts[:2])
    return inner if inner in LAYERS[package] else parts[0].removesuffix(".py")


@pytest.mark.parametrize("package", LAYERS)
def test_every_file_has_a_row_and_a_package_twenty_of_them_at_most(package):
    rows = {row_of(path) for path in FILES if name_of(path).startswith(f"{package}/")}
    assert rows == set(LAYERS[package])
    assert len({row.partition("/")[0] for row in rows}) <= 20


def tables_of_the_tree() -> dict[str, list[tuple[str, list[str]]]]:
    """Return the rows of the tables in docs/architecture.md: a folder or file, and which of its files to open first."""
    found = {}
    for package in LAYERS:
        section = PAGE.partition(f"\n### {package}\n")[2].partition("\n#")[0]
        rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
        found[package] = [(NAMED.findall(row[1])[0], NAMED.findall(row[3])) for row in rows]
    return found


@pytest.mark.parametrize("package", LAYERS)
def test_the_page_on_architecture_shows_the_rows_and_files_that_exist(package):
    table = tables_of_the_tree()[package]
    assert [name.removesuffix("/").removesuffix(".py") for name, _ in table] == [
        row for row in LAYERS[package] if not row.startswith("__")
    ]
    for name, first in table:
        for one in first:
            path = ROOT / package / name / one
            assert path.is_dir() or path.with_suffix(".py").is_file(), f"{package}/{name}{one}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_documents_name_files_that_exist(path):
    missing = [named for named in FILE_NAMED.findall(path.read_text()) if not (ROOT / named).exists()]
    assert missing == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path):
    """Those under TYPE_CHECKING and inside functions, too."""
    rows = LAYERS[path.relative_to(ROOT).parts[0]]
    mine = rows.index(row_of(path))
    for other in imported_files(path):
        assert rows.index(row_of(other)) <= mine, f"{name_of(path)} imports {name_of(other)} from a higher row"


@pytest.mark.parametrize("package", LAYERS)
def test_no_files_import_each_other(package):
    """Not over other files either, and whatever the import is for; a package's own `__init__` aside."""
    left = {path: imported_files(path) for path in FILES if name_of(path).startswith(f"{package}/")}
    while ready := [path for path, others in left.items() if not others & left.keys() - {path}]:
        for path in ready:
            del left[path]
    assert not left, f"in circles, or above them: {sorted(map(name_of, left))}"


def test_loggers_keep_their_names_when_files_move():
    """Users set levels by them."""
    assert [name_of(path) for path in FILES if "getLogger(__name__)" in path.read_text()] == []


def test_natty_never_imports_capture():
    for path in FILES:
        if name_of(path).startswith("natty/"):
            assert "capture" not in imports_of(path), name_of(path)


@pytest.mark.parametrize("library", HEAVY)
def test_a_library_stands_only_where_it_is_needed(library):
    users = [name_of(path) for path in FILES if library in imports_of(path)]
    assert users, f"nobody imports {library} any more: take it out of this table and of pyproject.toml"
    strangers = [user for user in users if not user.startswith(tuple(HEAVY[library]))]
    assert strangers == []


def test_without_its_extras_the_command_line_says_what_to_install(monkeypatch):
    """`pip install natty-nats` alone: everything that an extra brings is hidden from a fresh interpreter."""
    code = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'typer', 'rich', 'pyarrow', 'pyroaring', 'pyspark'}:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Hidden())
from %s.cli import main
main()
"""
    monkeypatch.chdir(ROOT)
    for package, extra in (("natty", "cli"), ("capture", "capture")):
        ran = subprocess.run(
            [sys.executable, "-c", code % package], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 1
        assert how_to_install(extra) in ran.stderr
        assert "Traceback" not in ran.stderr


def test_natty_itself_loads_nothing_heavy():
    code = "import sys; from natty import Natty; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    heavy = {"pyspark", "pyarrow", "typer", "rich", "pytest", "capture", "opentelemetry", "aiohttp", "nats"}
    assert not heavy & set(loaded.split())


def test_only_one_file_knows_what_nats_py_keeps_private():
    private = {"_transport", "_io_writer", "_io_reader", "_read_loop", "_connect_command", "_server_info"}
    for path in FILES:
        if name_of(path) == "natty/wire/nats_py.py":
            continue
        used = {node.attr for node in nodes_of(path) if isinstance(node, ast.Attribute)}
        assert not used & private, f"{name_of(path)} uses {used & private}"


FORWARD_ACKS = {"capture/ingest/source.py", "capture/ingest/group_source.py", "capture/ingest/pinned_consumer.py"}


def test_capture_acks_in_one_place():
    callers = set()
    for path in FILES:
        if not name_of(path).startswith("capture/") or name_of(path) in FORWARD_ACKS:
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "ack":
                callers.add(name_of(path))
    assert callers == {"capture/ingest/commit.py"}


ACK_PATTERNS = {"natty/elections/permissions.py", "natty/metrics/telemetry.py"}  # of subjects, not of one message


def test_ack_subjects_are_composed_and_parsed_in_one_file():
    """Other files ask whether a subject is one."""
    named = {name_of(path) for path in FILES if "$JS.ACK" in path.read_text()}
    assert named == {"natty/wire/ack.py", *ACK_PATTERNS}
    for path in FILES:
        if any(module == "natty.wire.ack" and name == "ACKS" for _, module, name in _imports_of(path)):
            used = [node for node in nodes_of(path) if isinstance(node, ast.Name) and node.id == "ACKS"]
            assert len(used) == path.read_text().count(".startswith(ACKS)"), name_of(path)


def test_the_facade_is_thin():
    tree = tree_of(ROOT / "natty" / "client.py")
    natty = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Natty")
    for method in natty.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = [
            node for node in method.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        ]
        assert len(body) <= THIN, f"Natty.{method.name} has {len(body)} statements"
        logic = [node for node in ast.walk(method) if isinstance(node, ast.Try | ast.For | ast.While | ast.AsyncFor)]
        assert not logic, f"Natty.{method.name} holds logic"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_small_and_are_named_for_what_they_are(path):
    largest = LARGEST_NOUN if str(path.relative_to(ROOT)) in ONE_NOUN else LARGEST_FILE
    assert len(path.read_text().splitlines()) <= largest
    assert path.stem not in FORBIDDEN_NAMES
    assert path.parent.name not in FORBIDDEN_NAMES


@pytest.mark.parametrize("package", LAYERS)
def test_hardly_two_files_of_a_package_have_one_name(package):
    """The commands aside: `capture verify` and `natty kv` are named after what they show."""
    named: dict[str, list[str]] = {}
    for path in FILES:
        if path.is_relative_to(ROOT / package) and row_of(path) != "cli" and path.stem not in COMMON_STEMS:
            named.setdefault(path.stem, []).append(name_of(path))
    shared = [names for names in named.values() if len(names) > 1]
    assert sum(len(names) - 1 for names in shared) <= SHARED_STEMS, shared


def defines_a_group_of_commands(path: Path) -> bool:
    return row_of(path) == "cli" and "\napp = typer.Typer(" in path.read_text()


def test_a_file_of_a_few_lines_is_one_of_several_choices():
    """Choices are groups of commands, and files beside `contract.py` and `choose.py`. Others are merged into a user."""
    for path in FILES:
        is_choice = all((path.parent / f"{name}.py").exists() for name in ("contract", "choose"))
        if path.stem not in COMMON_STEMS and not is_choice and not defines_a_group_of_commands(path):
            assert len(path.read_text().splitlines()) >= SMALLEST_FILE, name_of(path)


def test_every_module_says_in_its_first_line_what_it_is_for():
    docstrings = {name_of(path): ast.get_docstring(tree_of(path), clean=False) or "\n" for path in FILES}
    assert [name for name, text in docstrings.items() if not text.splitlines()[0].strip()] == []


def test_public_functions_and_classes_say_what_they_do():
    silent = []
    for path in FILES:
        for node in tree_of(path).body:
            kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node):
                silent.append(f"{name_of(path)}: {node.name}")
    assert silent == []


def test_a_function_is_a_verb_and_no_participle():
    """Looks at names of one word in -ed; a property may have one."""
    nodes = [node for path in FILES for node in nodes_of(path)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = {one.name for one in functions if "property" not in "".join(map(ast.unparse, one.decorator_list))}
    assert {name for name in names if re.fullmatch(r"_*[a-z]*[^e_]ed", name)} == PARTICIPLES


def public_functions(node: ast.AST):
    """Yield the public functions and methods of a module or class; overloads stand for what they overload."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    found = [one for one in ast.iter_child_nodes(node) if isinstance(one, kinds)]
    overloads = [one for one in found if "overload" in map(ast.unparse, one.decorator_list)]
    overloaded = {one.name for one in overloads}
    yield from overloads
    yield from (one for one in found if one.name not in overloaded and not one.name.removeprefix("__").startswith("_"))
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
            yield from public_functions(one)


def test_public_functions_name_their_options():
    """An editor shows them and a type checker knows them: no `**options: Any`."""
    untyped = []
    for path in FILES:
        for function in public_functions(tree_of(path)):
            rest = function.args.kwarg
            if rest is not None and (rest.annotation is None or ast.unparse(rest.annotation) in {"Any", "object"}):
                untyped.append(f"{name_of(path)}: {function.name}")
    assert set(untyped) <= ANY_KEYWORDS.keys()


def test_init_files_hold_names_and_nothing_else():
    """Type checkers read the imports of the two packages; Python runs a table and two functions that load on demand."""
    allowed = ast.Import | ast.ImportFrom | ast.Assign | ast.Expr
    for path in FILES:
        if path.name == "__init__.py" and path.parent.name != "cli":
            body = tree_of(path).body
            if path.parent.parent == ROOT:
                names = next(node for node in body if isinstance(node, ast.If))
                assert ast.unparse(names.test) == "TYPE_CHECKING"
                assert {type(node) for node in names.body} == {ast.ImportFrom}
                functions = [node.name for node in names.orelse if not isinstance(node, ast.Assign)]
                assert functions == ["__getattr__", "__dir__"]
                body = [node for node in body if node is not names]
            strange = [type(node).__name__ for node in body if not isinstance(node, allowed)]
            assert strange == [], name_of(path)


def test_every_dependency_has_a_reason_on_its_line():
    text = (ROOT / "pyproject.toml").read_text()
    section = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    for line in section.splitlines():
        if line.strip().startswith('"') and "natty-nats[" not in line:
            assert "#" in line, f"no reason beside {line.strip()}"
