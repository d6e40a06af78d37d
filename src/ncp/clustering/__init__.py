"""From a table to an answer."""
