"""History: the runs of all boxes, and what they cost."""
