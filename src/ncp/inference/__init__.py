"""The oracles: exact posteriors, importance sampling, Markov chains. They know no network."""
