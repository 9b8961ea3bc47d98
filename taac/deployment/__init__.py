"""Trained policies as files that run without this package."""
