"""Restores a stream from its archive: reads its past state, plans (pure), and rebuilds, replays or exports it."""
