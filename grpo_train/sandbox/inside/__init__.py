"""Code that runs inside the sandboxed interpreter, before and around the program.

The parent compiles these files once and passes their code to every fresh interpreter, so a child does not open files
of this repository. They import built-in modules only (each import costs a child milliseconds) and do not use
``from __future__``. Nothing here decides a verdict: reports are claims, which the parent judges.
"""
