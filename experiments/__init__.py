"""Recipes of the models, the figures of the paper, and what was tried."""
