"""`capture run --metrics`: what Prometheus and a readiness probe see of a node."""

import json
import signal
import ssl
import time
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from patient import PATIENCE
from prometheus_client.parser import text_string_to_metric_families
from secret import write_secret

from natty.testing.spawner import free_ports


def fetch(port, path):
    """Return (status, body); (0, b"") while nobody listens."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()
    except (URLError, ConnectionError):
        return 0, b""


def until(process, look):
    """Return what `look` returns once it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return found


def test_a_node_serves_its_figures_its_clients_and_its_readiness(shell, make_stream, natty_name):
    stream = make_stream(natty_name("NODE"), 20)
    (port,) = free_ports(1)
    options = ["--stream", stream, "--store", str(shell.folder / "lake"), "--max-age", "0.2"]
    process = shell.start("capture", "run", *options, "--metrics", f"127.0.0.1:{port}")

    def captured():
        text = fetch(port, "/metrics")[1].decode()
        shown = {
            (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }
        leads = any(value for (name, *_), value in shown.items() if name == "natty_leader")
        return shown if leads and shown.get(("capture_messages_total", stream)) == 20 else None

    shown = until(process, captured)
    assert shown["capture_blocks_total", stream] >= 1
    assert shown["natty_connected",] == 1
    assert shown["natty_pull_messages_total", "capture", stream] >= 20

    def ready():
        status, body = fetch(port, "/readyz")
        return status == 200 and json.loads(body)

    assert until(process, ready) == {"ready": True, "reasons": []}
    assert fetch(port, "/livez")[0] == 200
    process.send_signal(signal.SIGTERM)
    assert shell.finish(process).status == 0


def test_an_address_that_is_none_is_refused_in_one_sentence(shell):
    done = shell.capture("run", "--stream", "S", "--store", str(shell.folder / "lake"), "--metrics", "here")
    assert done.status == 1
    assert "'here' is not an address to serve on" in done.complaint


def test_the_figures_are_served_over_tls_to_who_shows_a_token(shell, make_stream, natty_name, natty_tls):
    stream = make_stream(natty_name("NODE"), 1)
    (port,) = free_ports(1)
    write_secret(shell.folder / "tokens", "a token that nobody guesses\n")
    served = ["--metrics-cert", natty_tls.server_cert, "--metrics-key", natty_tls.server_key]
    served += ["--metrics-token-file", "tokens", "--metrics", f"127.0.0.1:{port}"]
    process = shell.start("capture", "run", "--stream", stream, "--store", "lake", *served)
    context = ssl.create_default_context(cafile=natty_tls.ca)

    def ask(path, **headers):
        try:
            request = Request(f"https://127.0.0.1:{port}{path}", headers=headers)
            with urlopen(request, context=context, timeout=PATIENCE) as answer:
                return answer.status
        except HTTPError as error:
            with error:
                return error.code
        except (URLError, ConnectionError):
            return 0

    until(process, lambda: ask("/livez") == 200)
    assert ask("/metrics") == 401
    assert ask("/metrics", Authorization="Bearer a token that nobody guesses") == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_what_says_how_figures_are_served_needs_the_figures(shell):
    done = shell.capture("run", "--stream", "S", "--store", "lake", "--metrics-token-file", "tokens")
    assert (done.status, "-token-file and -allow-host need --metrics" in done.complaint) == (1, True)
