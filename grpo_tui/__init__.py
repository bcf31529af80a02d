"""The laptop's app: Textual screens over a Textual-free model of one box."""
