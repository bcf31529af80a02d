"""What the face knows, as plain values. No Textual, no sockets."""
