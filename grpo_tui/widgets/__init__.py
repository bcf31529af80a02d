"""Widgets that several views have. A widget reads the store and repaints when it changes."""
