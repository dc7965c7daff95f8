"""The type of the benches' messages, for a node that decodes them."""

import msgspec


class Event(msgspec.Struct):
    number: int
    text: str
