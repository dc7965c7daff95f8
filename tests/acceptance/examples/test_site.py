"""The site of `make docs`, as its reader has it: opened from a folder, at the width of a phone, and searched."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import browsing
from loaded import list_foreign, list_of_page, list_of_sheet

ROOT = Path(__file__).parents[3]
PHONE = 390  # pixels


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    yield folder
    shutil.rmtree(folder)


def test_a_browser_shows_each_page_at_a_phones_width_and_searches_them_from_a_folder(site, tmp_path):
    pages = sorted(path for path in site.glob("**/*.html") if path.name != "404.html")  # a server's answer, not a page
    assert len(pages) > 50
    with browsing(tmp_path) as browser:
        for page in pages:
            seen = browser(open=page.as_uri(), width=PHONE)
            assert (seen["complaints"], seen["wider"]) == ([], False), page.name
        found = browser(open=f"{(site / 'index.html').as_uri()}?q=dead+letter", until="matching documents")
        assert "natty buries a message that no consumer could handle" in found["text"]
        assert found["complaints"] == []


def test_the_site_loads_nothing_from_another_host(site):
    for page in site.glob("**/*.html"):
        loaded = list_of_page(page.read_text())
        assert any(one.endswith(".css") for one in loaded)
        assert list_foreign(loaded) == [], page.name
    for sheet in site.glob("**/*.css"):
        assert list_foreign(list_of_sheet(sheet.read_text())) == [], sheet.name


def test_the_reference_shows_each_commands_examples_and_not_the_connections_options(site):
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "capture-commands.html").read_text())
    assert "capture backfill ORDERS" in text
    assert "--js-domain" not in text


def test_the_list_for_programs_names_each_page_with_a_sentence(site):
    lines = [line for line in (site / "llms.txt").read_text().splitlines() if line.startswith("- ")]
    pages = {path.relative_to(site).as_posix() for path in site.glob("**/*.html")} - {"404.html"}
    assert {re.search(r"\]\((.*?)\)", line)[1] for line in lines} == pages
    assert [line for line in lines if not re.search(r"\): \S", line)] == []
