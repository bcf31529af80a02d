"""The face: a Textual app over a store that has no Textual in it."""
