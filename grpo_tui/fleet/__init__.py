"""Many boxes at once: what each says about itself, on a connection of its own. No Textual."""
