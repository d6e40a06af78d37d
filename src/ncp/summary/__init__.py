"""From samples to statements: similarity, point estimates, credible balls."""
