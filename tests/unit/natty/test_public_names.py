"""What `natty` exports, and that no name hides another."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import natty
from natty import Natty, NattyError

ROOT = Path(__file__).parents[3]
PACKAGES = sorted(path.parent for name in ("natty", "capture") for path in (ROOT / name).rglob("__init__.py"))


def errors_of(kind):
    for one in kind.__subclasses__():
        yield one
        yield from errors_of(one)


def public_errors():
    """Every error of natty, those of its commands and private ones aside."""
    for module in pkgutil.walk_packages(natty.__path__, "natty."):
        if not module.name.startswith(("natty.cli", "natty.__main__")):
            importlib.import_module(module.name)
    ours = {one for one in errors_of(NattyError) if one.__module__.startswith("natty.")}
    return {one for one in ours if not one.__module__.startswith("natty.cli") and not one.__name__.startswith("_")}


def names_in(path):
    """The names that a file imports or defines."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def test_every_error_ends_in_error_and_is_exported():
    for error in public_errors():
        assert error.__name__.endswith("Error"), error
        home = importlib.import_module("natty.testing") if error.__module__.startswith("natty.testing") else natty
        assert getattr(home, error.__name__, None) is error, f"{home.__name__} does not export {error.__name__}"
        assert error.__name__ in home.__all__


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_of_a_package_hides_one_of_its_modules(package):
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    modules = {path.stem for path in package.glob("*.py")} | folders
    assert not names_in(package / "__init__.py") & modules


def test_no_method_of_the_client_has_the_name_of_a_module():
    """`natty.publish(…)`, written for `client.publish(…)`, must not find a module."""
    modules = {module.name for module in pkgutil.iter_modules(natty.__path__)}
    methods = {name for name in vars(Natty) if not name.startswith("_")}
    assert not methods & modules
