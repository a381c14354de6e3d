"""What is timed, against what, and how to rerun it."""
