"""The description of the package has no dead link, wherever the repository is."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHERE = "https://forge.example/us/natty"


@pytest.fixture(scope="module")
def hook():
    """The module hatch_build.py, which hatchling imports by its path."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_to_files_and_images_become_absolute(hook):
    text = "![a](docs/a.svg) [b](docs/b.md#c) [d](https://d.example) [e](#f)"
    assert hook.absolute(text, WHERE) == (
        f"![a]({WHERE}/raw/HEAD/docs/a.svg) [b]({WHERE}/blob/HEAD/docs/b.md#c) [d](https://d.example) [e](#f)"
    )


def test_code_stays_as_it_is(hook):
    text = "```python\nx[0](y)\n```\n"
    assert hook.absolute(text, WHERE) == text


def test_without_a_repository_links_to_files_are_only_text(hook):
    assert hook.absolute("![a](docs/a.svg) [b](docs/b.md) [d](https://d.example)", "") == "(a) b [d](https://d.example)"
    assert hook.urls("") == {}


@pytest.mark.parametrize("where", ["", WHERE])
def test_the_readme_leaves_no_relative_link(hook, where):
    text = hook.absolute((ROOT / "README.md").read_text(), where)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert [target for target in re.findall(r"\]\(([^)]+)\)", prose) if not target.startswith("https://")] == []


def test_the_packages_page_has_links_to_source_issues_and_changes(hook):
    assert {"Source", "Issues", "Changelog", "Documentation"} == set(hook.urls(WHERE))
    assert all(url.startswith(WHERE) for url in hook.urls(WHERE).values())
