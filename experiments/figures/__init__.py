"""Figures as functions of plain arrays."""
