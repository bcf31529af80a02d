"""What the user can do that needs dialogs, or is the same in several views. ``actions.py`` names each one."""
