"""Box: what the machine does and did."""
