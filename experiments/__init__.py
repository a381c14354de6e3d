"""Sweeps, reports and figures: what is made of many runs."""
