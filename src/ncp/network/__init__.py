"""h, g and f, attention over the data set, and the files that hold them."""
