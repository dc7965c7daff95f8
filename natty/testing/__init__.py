"""Real servers for tests and demos: certificates, a server, a cluster, and faults between client and server.

The fixtures are in `natty.testing.plugin`, which pytest loads automatically if natty is installed.
"""

from natty.config.tls import DevCA, TLSFiles
from natty.testing.binary import ServerBinaryError, find_server, server_version
from natty.testing.cluster import NatsCluster
from natty.testing.probe import NoAnswerError
from natty.testing.proxy import Proxy
from natty.testing.server import NatsServer, ServerStartError
from natty.testing.server_options import ServerOptions
from natty.testing.spawner import free_ports

__all__ = [
    "NatsServer",
    "NatsCluster",
    "ServerOptions",
    "Proxy",
    "DevCA",
    "TLSFiles",
    "find_server",
    "server_version",
    "free_ports",
    "NoAnswerError",
    "ServerBinaryError",
    "ServerStartError",
]
