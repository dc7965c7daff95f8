"""One process of the fleet: streams' nodes, the leader's tasks, reload, shutdown."""
