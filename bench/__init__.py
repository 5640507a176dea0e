"""Benchmarks of the relay against real programs on this machine."""
