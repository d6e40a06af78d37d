"""Markov chains over partitions, compiled."""
