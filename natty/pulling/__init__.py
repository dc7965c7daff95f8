"""Messages from consumers by requests: the pull loop, a few messages at once, and ordered reading."""
