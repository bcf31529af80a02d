"""One widget a file. A widget reads the store, keeps nothing of its own that the store knows, and repaints on change."""
