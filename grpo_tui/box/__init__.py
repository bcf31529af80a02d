"""State of the app as plain values. No Textual, no sockets."""
