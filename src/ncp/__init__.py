"""Amortised Bayesian clustering."""
