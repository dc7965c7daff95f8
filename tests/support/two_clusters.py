"""Two clusters of three servers each, with separate JetStream domains, joined by leaf nodes; TLS everywhere."""

from contextlib import contextmanager
from dataclasses import replace

from natty.testing import NatsCluster, ServerOptions, free_ports


@contextmanager
def two_clusters(size=3):
    """Yield the clusters `hub` and `edge`; a message published on one is stored on the one with a stream for it."""
    hub = NatsCluster(size, ServerOptions(name="hub"))
    edge = NatsCluster(size, ServerOptions(name="edge"), tls_files=hub.tls_files)
    ports = free_ports(size)
    tls = _tls(hub.tls_files)
    urls = ", ".join(f'"tls://127.0.0.1:{port}"' for port in ports)
    for server, port in zip(hub, ports, strict=True):
        _configure(server, "hub", f'leafnodes {{ listen: "127.0.0.1:{port}", {tls} }}')
    for server in edge:
        _configure(server, "edge", f"leafnodes {{ remotes: [{{ urls: [{urls}], {tls} }}] }}")
    with hub, edge:
        yield hub, edge


def _configure(server, domain, leafnodes):
    store = f'jetstream {{ store_dir: "{server.folder}/jetstream", domain: {domain} }}'
    server.options = replace(server.options, config=f"{store}\n{leafnodes}\n")


def _tls(files):
    settings = {"cert_file": files.server_cert, "key_file": files.server_key, "ca_file": files.ca}
    lines = [f'{name}: "{path}"' for name, path in settings.items()]
    return f"tls {{ {', '.join(lines)}, verify: true, timeout: 60 }}"
