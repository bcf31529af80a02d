"""One widget a file. A widget reads the store, keeps nothing that the store knows, and repaints on change."""
