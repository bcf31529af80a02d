"""Dialogs over the views: forms, lists, plans, confirmations."""
