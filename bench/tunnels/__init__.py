"""Download speed of real tunnels over eight layouts of resolvers: see `bench/README.md`."""
