"""Logs: any file of the selected run and its evaluations."""
