"""Waits for the S3 store of docker-compose.yml, creates its bucket, and checks what capture needs of a store."""

import asyncio
import os
import sys
import time
from pathlib import Path

from capture.config.load import load
from capture.errors import CaptureError
from capture.stores import check_store, open_store

WITHIN = 120.0
"""Seconds to wait for the store."""

PAUSE = 1.0
"""Seconds between two checks."""


async def main() -> None:
    """Check the store until it passes, at most WITHIN seconds; the first put of the check creates the bucket."""
    url = load(Path(os.environ["CAPTURE_CONFIG"])).store
    deadline, said = time.monotonic() + WITHIN, ""
    while True:
        try:
            await check_store(open_store(url))
        except (CaptureError, OSError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"the store is not ready after {WITHIN:g} s: {error}")
            if str(error) != said:
                said = str(error)
                print(f"waiting for the store: {said}", flush=True)
            await asyncio.sleep(PAUSE)
        else:
            print(f"{url} is ready")
            return


if __name__ == "__main__":
    asyncio.run(main())
