"""Rules by which a server combines updates that may be poisoned, one file each."""
