"""Widgets of the home screen, one per file. A widget reads the store and repaints when it changes."""
