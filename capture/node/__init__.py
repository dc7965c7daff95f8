"""One process of the fleet: a node for each stream, the leader's tasks, reload, shutdown."""
