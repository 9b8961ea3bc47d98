"""Reads finished run folders. Imports neither algorithms nor training."""
