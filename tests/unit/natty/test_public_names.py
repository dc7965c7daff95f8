"""What `natty` and `capture` export, when it is loaded, what type checkers see, and that no name hides another."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import capture
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


def test_every_error_of_capture_ends_in_error_and_is_exported():
    ours = {one for one in errors_of(capture.CaptureError) if one.__module__ == "capture.errors"}
    assert ours
    for error in ours:
        assert error.__name__.endswith("Error"), error
        assert getattr(capture, error.__name__, None) is error, f"capture does not export {error.__name__}"
        assert error.__name__ in capture.__all__


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


def names_for_type_checkers(package):
    """The names with their modules that the package's `__init__` imports for type checkers alone."""
    (block,) = (node for node in ast.parse(Path(package.__file__).read_text()).body if isinstance(node, ast.If))
    return [(alias.asname, node.module) for node in block.body for alias in node.names]


@pytest.mark.parametrize("package", [natty, capture], ids=["natty", "capture"])
def test_each_public_name_is_the_one_that_type_checkers_see(package):
    seen = names_for_type_checkers(package)
    assert sorted(name for name, _ in seen) == package.__all__
    for name, module in seen:
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("package", ["natty", "capture"])
def test_a_star_import_brings_every_public_name(package):
    found = {}
    exec(f"from {package} import *", found)
    assert set(importlib.import_module(package).__all__) == found.keys() - {"__builtins__"}


@pytest.mark.parametrize("package", [natty, capture], ids=["natty", "capture"])
def test_a_name_that_is_not_public_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nonsense'"):
        _ = package.nonsense
    assert not hasattr(package, "__wrapped__")


@pytest.mark.parametrize("package", ["natty", "capture"])
def test_a_package_loads_none_of_its_modules_before_a_name_is_used(package):
    code = (
        f"import sys, {package}; print(*[name for name in sys.modules if name.split('.')[0] in ('natty', 'capture')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [package]


@pytest.mark.long
def test_mypy_knows_the_type_of_each_public_name(tmp_path):
    """Also by a star import, and it refuses a name that is not public."""
    names = [f"{package.__name__}.{name}" for package in (natty, capture) for name in package.__all__]
    starred = [f"from {package} import *\n" for package in ("natty", "capture")]
    script = tmp_path / "names.py"
    script.write_text("import capture\nimport natty\n" + "".join(f"reveal_type({name})\n" for name in names))
    stars = [tmp_path / "star_natty.py", tmp_path / "star_capture.py"]
    for file, star, package in zip(stars, starred, (natty, capture), strict=True):
        file.write_text(star + "".join(f"reveal_type({name})\n" for name in package.__all__))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import natty\nnatty.nonsense\n")
    files = [script, *stars, wrong]
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", *files]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    revealed = [line for line in ran.stdout.splitlines() if "Revealed type is" in line]
    assert len(revealed) == 2 * len(names), ran.stdout
    assert [line for line in revealed if 'is "Any"' in line] == []
    errors = [line for line in ran.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, ran.stdout
    assert 'Module has no attribute "nonsense"' in errors[0]


def named_in_docstrings():
    for cls in (Natty, natty.JetStream, natty.Bucket):
        for name in (name for name in vars(cls) if not name.startswith("_")):
            for named in re.findall(r"`([A-Z]\w*)(?:\.\w+)*`", getattr(cls, name).__doc__ or ""):
                yield f"{cls.__name__}.{name}", named


def test_the_types_that_a_docstring_of_the_client_names_are_exported():
    """What `help(Natty.consume)` calls `ConsumeSettings` is `natty.ConsumeSettings`."""
    found = set(named_in_docstrings())
    assert ("Natty.consume", "ConsumeSettings") in found
    assert {(where, name) for where, name in found if not hasattr(natty, name)} == set()
