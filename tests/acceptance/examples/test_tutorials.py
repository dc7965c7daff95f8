"""Each tutorial of docs/ does what it says, on its own server: files are written, commands run, outputs compared."""

import shutil

import pytest
from command_line import settings_of
from pages import TUTORIALS
from tutorial import Reader

from natty.testing import NatsServer


def marks_of(page):
    needs_spark = "<!-- test: spark -->" in page.read_text()
    return [pytest.mark.spark] if needs_spark else []


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks_of(page), id=page.stem) for page in TUTORIALS])
def test_a_page_does_what_it_says(page, tmp_path):
    folder = tmp_path / "server"
    with NatsServer(folder=folder) as server:

        def lose_server():
            server.stop()
            shutil.rmtree(folder / "jetstream")
            server.restart()

        reader = Reader(tmp_path, settings_of(server.connect_options(), tmp_path), lose_server)
        try:
            reader.follow(page)
        finally:
            reader.close()
