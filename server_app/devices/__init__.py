"""Simulated devices: who is online, how fast, who drops out; rounds on their clock."""
