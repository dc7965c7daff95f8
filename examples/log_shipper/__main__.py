"""`python -m log_shipper produce` and `python -m log_shipper consume`; README.md names the settings."""

import argparse
import asyncio
import logging
import os
import signal
import sys

from log_shipper.consume import consume
from log_shipper.produce import produce
from log_shipper.settings import ConsumeSettings, ProduceSettings, SettingError, ShipperError
from natty import Natty, NattyError


async def run(program: str) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if program == "produce":
        from_file = ProduceSettings.read(os.environ)
        async with Natty(name=f"shipper of {from_file.host}") as natty:
            await produce(natty, from_file, stopping)
    else:
        to_files = ConsumeSettings.read(os.environ)
        async with Natty(name="shipper") as natty:
            await consume(natty, to_files, stopping)


def main() -> int:
    parser = argparse.ArgumentParser(prog="shipper", description="Ships the lines of log files through JetStream.")
    parser.add_argument("program", choices=["produce", "consume"])
    program = parser.parse_args().program
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        asyncio.run(run(program))
    except SettingError as error:
        print(f"shipper: {error}", file=sys.stderr)
        return 2
    except (ShipperError, NattyError) as error:
        print(f"shipper: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"shipper: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
