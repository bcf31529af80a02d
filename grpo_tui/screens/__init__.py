"""Dialogs and the help screen, which are over the views."""
