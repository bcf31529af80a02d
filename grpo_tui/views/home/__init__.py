"""Home: the runs of a box, and a summary of the selected one."""
