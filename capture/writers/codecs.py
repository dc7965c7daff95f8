from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cramjam

from capture.errors import ConfigError

GZIP_LEVEL = 1  # 955 MB/s of one core against 133 at level 6, which saves a tenth more
ZSTD_LEVEL = 1  # the compaction writes the lasting file


@dataclass(frozen=True)
class Codec:
    """A compression of whole objects, and the end that it gives their names."""

    name: str
    ending: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]


def _whole(function: Callable[..., Any], *more: int) -> Callable[[bytes], bytes]:
    return lambda data: bytes(function(data, *more))


CODECS = {
    codec.name: codec
    for codec in (
        Codec("gzip", "gz", _whole(cramjam.gzip.compress, GZIP_LEVEL), _whole(cramjam.gzip.decompress)),
        Codec("snappy", "sz", _whole(cramjam.snappy.compress), _whole(cramjam.snappy.decompress)),
        Codec("zstd", "zst", _whole(cramjam.zstd.compress, ZSTD_LEVEL), _whole(cramjam.zstd.decompress)),
    )
}
ENDINGS = {codec.ending: codec for codec in CODECS.values()}
NONE = "none"


def codec(name: str) -> Codec | None:
    """Return the compression of this name, None for "none". ConfigError, with the known names, if there is none."""
    if name != NONE and name not in CODECS:
        raise ConfigError(f"there is no compression {name!r}; the known ones are {', '.join([NONE, *CODECS])}")
    return CODECS.get(name)
