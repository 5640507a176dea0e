"""How every transport comes back after its path was cut: see `bench/README.md`."""
