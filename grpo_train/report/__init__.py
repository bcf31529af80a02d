"""Reports of one run, or of several compared, as one HTML or Markdown file. Torch-free.

:mod:`.report` collects what a report says, :mod:`.html` and :mod:`.markdown` write it. Every text of a run is hostile:
a model wrote the completions, and on a shared root anyone may have written the rest. It reaches a page only through
:mod:`.text`.
"""
