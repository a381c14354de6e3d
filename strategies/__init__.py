"""Part of fedrecgel."""
