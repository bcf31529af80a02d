"""The mechanisms that views, dialogs and commands are made of."""
