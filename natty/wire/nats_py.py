"""Imports nats-py without aiohttp, which nats-py uses for WebSockets alone and which takes half of `import natty`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class LateModule(ModuleType):
    """Stands for a module until one of its names is used; the module is imported then."""

    def __getattr__(self, name: str) -> Any:
        self.withdraw()
        return getattr(import_module(self.__name__), name)

    def withdraw(self) -> None:
        """Have the next import of this name find the module itself."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


def import_nats_py() -> None:
    """Import nats-py; what it knows as `aiohttp` is then imported when a WebSocket is opened.

    Nothing changes for a program that has imported either of them before, nor where aiohttp is not installed.
    """
    if "aiohttp" in sys.modules or "nats.aio.transport" in sys.modules or find_spec("aiohttp") is None:
        return
    late = sys.modules["aiohttp"] = LateModule("aiohttp")
    try:
        import_module("nats.aio.client")
    finally:
        late.withdraw()


import_nats_py()
