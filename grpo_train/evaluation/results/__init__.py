"""What evaluations store: keys, partial and complete results, the log."""
