"""Ships log files through JetStream: the two programs of the NATS Messaging series, on natty. See README.md."""
