"""natty for programs without an event loop: the same client on its own event loop, in a background thread.

`from natty.blocking import Natty`. Each method is the method of `natty.Natty` with that name, and returns when done.
"""

from natty.blocking.facade import Bucket as Bucket
from natty.blocking.facade import Natty as Natty
from natty.blocking.facade import Scheduler as Scheduler
from natty.blocking.running import Running as Running
