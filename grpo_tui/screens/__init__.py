"""One screen a file: home, and the dialogs over it."""
