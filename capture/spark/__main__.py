"""Starts the driver's process: it is run by its path, with requests on standard input."""

from capture.spark.driver import main

if __name__ == "__main__":
    main()
