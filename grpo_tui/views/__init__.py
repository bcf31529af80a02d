"""The views, a folder each: ``screen``, its panels, and ``model``, which does not import Textual."""
