"""``fedrecgel sweep``: many runs of one question, several at once, made once and kept."""
