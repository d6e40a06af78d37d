"""From a recipe to weights."""
