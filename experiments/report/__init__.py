"""Tables, figures and a page of many runs."""
