"""The results of commands: the output, or the one sentence of an error."""


def printed(done):
    """Return the output of a command that succeeded."""
    assert (done.status, done.err) == (0, ""), done.err
    return done.out


def complaint(done, status=1):
    """Return the only sentence on standard error of a command without output; log lines above it are left out."""
    assert (done.status, done.out) == (status, ""), done
    return the_line(done.err)


def the_line(err):
    """Return the only line on standard error that is not a log line."""
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line[:2] != "20"]
    assert len(lines) == 1, err
    return lines[0]
