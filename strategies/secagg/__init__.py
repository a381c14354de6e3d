"""Secure aggregation: what server and nodes both need of the protocol in ``docs/secagg.md``."""
