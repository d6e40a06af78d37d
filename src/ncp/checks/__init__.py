"""Is a posterior right? Callables in, numbers out."""
