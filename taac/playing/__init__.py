"""Plays saved agents, and records what they do."""
