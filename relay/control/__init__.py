"""The control API: HTTP over a Unix socket, or over TCP on loopback."""
