"""The blocks of the documents: which of them a test carries out, and how Python of a page runs in a test's process.

`EXCEPT` has the blocks and command lines that no test of acceptance/examples/test_pages_*.py carries out, by how they
begin, each with the reason, or with the test that does it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LANGUAGES = {"python", "toml", "sh", "text", "sql", "json", "properties"}
TUTORIALS = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), ROOT / "docs" / "from-other-libraries.md"]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += [path for path in sorted((ROOT / "docs").glob("**/*.md")) if path not in TUTORIALS]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)

STORES = "tests/integration/capture/stores/test_own_store_node.py"
EXCEPT_PYTHON = {  # (page, words of the block): who carries it out, or why nobody does
    ("README.md", "as_leader("): "tests/acceptance/examples/test_examples.py: it is examples/nightly.py",
    ("election.md", "cron="): "tests/acceptance/examples/test_examples.py: it is examples/nightly.py",
    ("tour.md", "cron="): "tests/acceptance/examples/test_examples.py: it is examples/nightly.py",
    ("consume.md", "def on_error"): "tests/acceptance/examples/test_examples.py: it is of examples/handler_errors.py",
    ("capture-node.md", "Node(load("): STORES,
    ("extending.md", "orders_node.py"): STORES,
    ("extending.md", "check_store(SqliteStore"): STORES,
    ("formats.md", "def messages("): "tests/unit/capture/formats/test_formats.py",
    ("formats.md", "def by_region("): "tests/unit/capture/formats/test_formats.py",
    ("formats.md", "def decrypted("): "tests/unit/capture/formats/test_formats.py",
    ("pipelines.md", "def features"): "tests/acceptance/capture/test_pipelines_page.py",
    ("pipelines.md", "StaticTable"): "tests/acceptance/capture/test_pipelines_page.py",
    ("pipelines.md", "polars"): "tests/acceptance/capture/test_pipelines_page.py",
    ("pipelines.md", 'format("iceberg")'): "tests/support/iceberg_on_spark.py: needs the runtime of Iceberg for Spark",
    ("spark.md", ""): "tests/acceptance/examples/test_pages_spark.py: all but the block for Spark Connect",
    ("table.md", "StaticTable"): "tests/unit/capture/iceberg/test_iceberg.py",
    ("table.md", "polars"): "tests/unit/capture/iceberg/test_iceberg.py",
    ("table.md", "duckdb"): "tests/unit/capture/iceberg/test_iceberg.py",
    ("table.md", 'format("iceberg")'): "tests/support/iceberg_on_spark.py: needs the runtime of Iceberg for Spark",
}
AS_ROOT = "changes the machine, as root"
INSTALLS = "installs packages from an index"
CLUSTER = "needs a cluster of Kubernetes; tests/unit/deploy/test_deploy.py renders the chart"
COMPOSE = "needs Docker; tests/acceptance/examples/test_compose_stack.py runs these services as processes"
PLUGIN = "needs the nats tool; tests/support/fisk_host.py is its part that calls plugins"
MIRROR = "needs two clusters; tests/acceptance/natty/test_mirror_cli.py has them"
CONNECT = "tests/integration/capture/spark/test_spark_connect.py starts such a server"
PIPELINES = "needs Spark; tests/acceptance/capture/test_pipelines_page.py"
EXCEPT_SHELL = {  # how a line begins: who carries it out, or why nobody does
    "make ": "runs the tests, or what takes minutes",
    "pip install ": INSTALLS,
    "python3 -m venv ": INSTALLS,
    ".venv/bin/pip install ": INSTALLS,
    ". .venv/bin/activate": "the environment of the tests is another one",
    "/opt/capture/bin/pip install ": AS_ROOT,
    "useradd ": AS_ROOT,
    "install --directory ": AS_ROOT,
    "cp deploy/systemd/": AS_ROOT,
    "systemctl ": AS_ROOT,
    "sudo -u capture ": AS_ROOT,
    "docker compose ": COMPOSE,
    "kubectl ": CLUSTER,
    "helm install ": CLUSTER,
    "nats ": PLUGIN,
    "natty server ": "takes port 4222; tests/acceptance/natty/test_natty_cli_server.py runs it on a free one",
    "natty stream mirror ": MIRROR,
    "natty group static upgrade ": "needs a group of 0.1; tests/integration/natty/groups/test_group_first_version.py",
    "natty group elastic upgrade ": "as the line above; tests/integration/natty/groups/test_group_first_version.py",
    "examples/restore_drill.sh ": "tests/acceptance/examples/test_restore_drill.py",
    "rclone copy ": "tests/integration/capture/node/test_moved.py",
    "export SPARK_CONNECT_AUTHENTICATE_TOKEN": CONNECT,
    '"$(/opt/venv/bin/python -c ': CONNECT,
    "capture pipeline ls --config capture.toml                     # rows": PIPELINES,
    "capture pipeline plan ": PIPELINES,
    "capture pipeline history ": PIPELINES,
    "capture pipeline run ": PIPELINES,
}


@dataclass(frozen=True)
class Block:
    """A fence of a page."""

    page: str
    language: str
    body: str


def blocks_of(path: Path) -> list[Block]:
    """Return the fences of a page, those of lists without their indentation."""
    fences = _FENCE.finditer(path.read_text())
    return [
        Block(path.name, one["language"], re.sub(rf"^{one['indent']}", "", one["body"], flags=re.M)) for one in fences
    ]


def python_of(path: Path) -> list[str]:
    """Return the blocks of Python that a test has to carry out."""
    return [one.body for one in blocks_of(path) if one.language == "python" and not exceptions_to(one)]


def exceptions_to(block: Block) -> list[tuple[str, str]]:
    """Return the keys of the exceptions that a block of Python is under."""
    return [(page, words) for page, words in EXCEPT_PYTHON if page == block.page and words in block.body]


def lines_of(path: Path) -> list[str]:
    """Return the command lines of a page's shell blocks, also those that no test carries out."""
    bodies = [one.body.replace("\\\n", " ") for one in blocks_of(path) if one.language == "sh"]
    return [line for body in bodies for line in body.splitlines() if line.strip()]


def commands_of(path: Path) -> list[str]:
    """Return the command lines that a test has to carry out."""
    return [line for line in lines_of(path) if not line.startswith(tuple(EXCEPT_SHELL))]


class Page:
    """The Python of a page, for a reader: `await run()` executes the next block in this process, in one namespace."""

    def __init__(self, path: Path, names: dict[str, object], changes: dict[str, str]) -> None:
        self.scope: dict[str, Any] = {"__name__": path.stem, **names}
        self.name, self.left, self._changes = path.name, python_of(path), changes

    async def run(self) -> None:
        """Execute the next block, with what it awaits at its top level; `_` is the value of a last expression.

        `asyncio.run` runs in the loop of the test. A block that awaits nothing runs in a thread, as it may block.
        """
        code = self.left.pop(0).replace("asyncio.run(", "await (")
        for shown, ours in self._changes.items():
            code = code.replace(shown, ours)
        tree = ast.parse(code)
        if isinstance(last := tree.body[-1], ast.Expr):
            tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
        compiled = compile(ast.fix_missing_locations(tree), self.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
        if compiled.co_flags & inspect.CO_COROUTINE:
            await eval(compiled, self.scope)
        else:
            await asyncio.to_thread(exec, compiled, self.scope)
