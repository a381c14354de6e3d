"""Keys of the records of messages."""

ARRAYS, CONFIG, METRICS, ROW_WEIGHTS = "arrays", "config", "metrics", "row_weights"
EXPOSURE, SUM, COUNT = "exposure", "sum/", "count/"
NUM_EXAMPLES, ITEM_COUNTS = "num-examples", "item_counts"
STOCK_ROUND = "server-round"
EVALUATION = "evaluation/"
"""Before the names of an evaluation's records in a training reply."""
