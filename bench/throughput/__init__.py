"""What a query costs in the relay, and beside it in dnsdist: see `bench/README.md`."""
