"""Attacks of malicious users in a simulation, one file each; ``docs/poisoning.md``."""
