"""The shared board: one memory file that every process of the relay maps. Standard library only."""
