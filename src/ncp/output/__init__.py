"""Readers, files, pictures and words: plain values in, files out."""
