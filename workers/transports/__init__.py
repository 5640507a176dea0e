"""The shell around the engine: the sockets of clients and resolvers."""
