"""How a command ended: what it printed, or the one sentence of its complaint."""


def printed(done):
    """Return what a command printed that went well."""
    assert (done.status, done.err) == (0, ""), done.err
    return done.out


def complaint(done, status=1):
    """Return the sentence on standard error of a command that printed nothing else; log lines above it are left out."""
    assert (done.status, done.out) == (status, ""), done
    return the_line(done.err)


def the_line(err):
    """Return the one line on standard error that is no log line."""
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line[:2] != "20"]
    assert len(lines) == 1, err
    return lines[0]
