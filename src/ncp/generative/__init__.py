"""What data could look like: priors of partitions, likelihoods, mixtures, tables."""
