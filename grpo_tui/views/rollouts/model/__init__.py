"""What the rollouts view knows and asks for. No Textual."""
