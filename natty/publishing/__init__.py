"""Messages into streams, with an outcome for each."""
