"""The pool's decisions, pure: no sockets, clock, randomness or logs of its own."""
