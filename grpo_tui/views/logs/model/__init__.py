"""What the logs view knows and asks for. No Textual."""
