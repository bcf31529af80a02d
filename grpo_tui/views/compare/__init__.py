"""Compare: two to twelve marked runs, what differs between them, and which one is better."""
