"""Partitions from a network: the prefix tree, beam search, new points."""
