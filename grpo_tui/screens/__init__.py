"""Screens: home, and the dialogs over it. One per file."""
