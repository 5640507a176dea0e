"""The engine under a clock that is moved by hand: no socket, no sleep, no wall time."""
