"""The command that installs an extra works where natty was installed from: PyPI does not have every version."""

import ast
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from natty.errors import how_to_install

ROOT = Path(__file__).parents[3]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make it look as if natty was installed with these facts (PEP 610), by a Python whose pip is on the PATH."""

    def pretend(**origin):
        info = tmp_path / "site" / "natty_nats-9.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Name: natty-nats\nVersion: 9\n")
        if origin:
            (info / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(str(info.parent))
        pip = tmp_path / "bin" / "pip"
        pip.parent.mkdir()
        pip.touch(0o755)
        monkeypatch.setattr(sys, "executable", str(pip.parent / "python"))
        monkeypatch.setenv("PATH", str(pip.parent), prepend=os.pathsep)

    return pretend


def test_an_extra_comes_from_the_folder_that_natty_was_installed_from(install, tmp_path, monkeypatch):
    folder = tmp_path / "a checkout"
    folder.mkdir()
    install(url=folder.as_uri(), dir_info={"editable": True})
    assert how_to_install("sql") == f'run: pip install -e "{folder}[sql]"'
    monkeypatch.chdir(folder)
    assert how_to_install("sql") == 'run: pip install -e ".[sql]"'


def test_a_folder_that_was_copied_is_copied_again(install, tmp_path):
    install(url=tmp_path.as_uri(), dir_info={})
    assert how_to_install("sql") == f'run: pip install "{tmp_path}[sql]"'


@pytest.mark.parametrize("origin", [{}, {"url": "file:///gone", "dir_info": {}}])
def test_otherwise_an_extra_comes_from_pypi(install, origin):
    install(**origin)
    assert how_to_install("sql") == 'run: pip install "natty-nats[sql]"'


def test_an_extra_comes_from_the_wheel_that_natty_was_installed_from(install):
    install(url="file:///x/natty_nats-9.whl", archive_info={})
    assert how_to_install("sql") == 'run: pip install "natty-nats[sql] @ file:///x/natty_nats-9.whl"'


def test_an_extra_comes_from_the_commit_that_natty_was_installed_from(install):
    install(url="https://x/y.git", vcs_info={"vcs": "git", "requested_revision": "main", "commit_id": "a1"})
    assert how_to_install("sql") == 'run: pip install "natty-nats[sql] @ git+https://x/y.git@a1"'


def test_the_pip_is_that_of_this_python(install, tmp_path, monkeypatch):
    install()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "other" / "python"))
    assert how_to_install("sql").startswith(f"run: {tmp_path}/other/python -m pip install ")
    monkeypatch.chdir(tmp_path)
    assert how_to_install("sql").startswith("run: other/python -m pip install ")


def test_a_working_folder_that_was_deleted_is_no_error(install, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    install(url=tmp_path.as_uri(), dir_info={})
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert how_to_install("sql") == f'run: pip install "{tmp_path}[sql]"'
    monkeypatch.setattr(sys, "executable", "/other/python")
    assert how_to_install("sql") == f'run: /other/python -m pip install "{tmp_path}[sql]"'


def test_without_pip_in_this_environment_the_extra_is_named(install, monkeypatch):
    install()
    monkeypatch.setattr("natty.errors.find_spec", lambda name: None if name == "pip" else find_spec(name))
    assert how_to_install("spark") == "install the extra spark: natty-nats[spark]"


def test_no_other_text_says_how_to_install_an_extra():
    said = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("natty", "capture")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "natty-nats[" in node.value
    ]
    assert {one.partition(":")[0] for one in said} == {"natty/errors.py"}, said
