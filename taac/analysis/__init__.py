"""Reads run folders, finished or not. Imports neither algorithms nor training."""
