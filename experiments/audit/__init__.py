"""What a curious server can infer about users from what they upload."""
