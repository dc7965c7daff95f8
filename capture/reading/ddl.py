"""Translates fields in Spark's notation, "carrier STRING, legs ARRAY<STRUCT<km: INT>>", to types of DuckDB."""

from __future__ import annotations

import re

from capture.errors import ConfigError

_TOKENS = re.compile(r"`(?:[^`]|``)*`|\w+|\[\]|[<>(),:]|\S")
_NAMES = {"STRING": "VARCHAR", "BINARY": "BLOB", "LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT"}
"""Spark's names of types for which DuckDB has another name."""


def fields(text: str) -> dict[str, str]:
    """Return DuckDB's type of each field. ConfigError if the text is not a list of fields."""
    reader = _Reader(text)
    found = reader.fields()
    reader.expect("")
    return found


class _Reader:
    """Parses the text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_TOKENS.findall(text), ""]

    def fields(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while not found or self._accept(","):
            name = self._name()
            self._accept(":")
            found[name] = self._type()
        return found

    def expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._error()

    def _type(self) -> str:
        name = self._name().upper()
        if name == "ARRAY" and self._accept("<"):
            found = f"{self._type()}[]"
            self.expect(">")
        elif name == "STRUCT" and self._accept("<"):
            found = f"STRUCT({', '.join(f'{quote(one)} {kind}' for one, kind in self.fields().items())})"
            self.expect(">")
        elif name == "MAP" and self._accept("<"):
            key = self._type()
            self.expect(",")
            found = f"MAP({key}, {self._type()})"
            self.expect(">")
        else:
            found = _NAMES.get(name, name) + (self._arguments() if self._accept("(") else "")
        while self._accept("[]"):
            found += "[]"
        return found

    def _arguments(self) -> str:
        numbers = [self._name()]
        while self._accept(","):
            numbers.append(self._name())
        self.expect(")")
        return f"({', '.join(numbers)})"

    def _name(self) -> str:
        token: str = self._tokens[0]
        if not re.fullmatch(r"\w+|`.+`", token):
            raise self._error()
        self._tokens.pop(0)
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def _accept(self, token: str) -> bool:
        if self._tokens[0] != token:
            return False
        if token:
            self._tokens.pop(0)
        return True

    def _error(self) -> ConfigError:
        where = f"at {self._tokens[0]!r}" if self._tokens[0] else "at its end"
        return ConfigError(f"schema {self._text!r} is wrong {where}; write 'carrier STRING, legs ARRAY<INT>'")


def quote(name: str) -> str:
    """Return a name in quotes for SQL."""
    return '"' + name.replace('"', '""') + '"'
