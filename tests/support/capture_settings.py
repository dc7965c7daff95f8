"""A start for tests of capture's settings: two settings, and an environment without any."""

import os

import pytest

NAMED = 'stream = "ORDERS"\nstore = "/data/lake"\n'


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("NATS_", "CAPTURE_"))]:
        monkeypatch.delenv(name)
