"""The first requests of a driver come at once, and are read in several threads."""

import subprocess
import sys

READ = """
import threading, time
from types import SimpleNamespace
from capture.spark.driver import Driver

class Echo(Driver):
    def __init__(self):
        self._answers = SimpleNamespace(send_result=lambda number, request: answers.append((number, request.following)))

    def _result(self, request):
        return request

answers, driver = [], Echo()

def pause(frame, event, _):  # where msgspec prepares a type by Python's code, let the other threads come in between
    if frame.f_code.co_filename.endswith("typing.py"):
        time.sleep(0.001)

threading.setprofile(pause)

def serve(number):
    driver._serve_one(b'{"op":"follow","id":%d,"following":{"pipeline":"p","options":{"a":"b"},"every":1.0}}' % number)

threads = [threading.Thread(target=serve, args=(number,)) for number in range(50)]
for one in threads:
    one.start()
    time.sleep(0.01)
for one in threads:
    one.join()
print(sum(following.options == {"a": "b"} for _, following in answers))
"""


def test_requests_that_are_the_first_of_their_kind_are_read_at_once():
    ended = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "50\n"), ended.stderr
