"""What runs inside the sandboxed interpreter, before and around the program of a model.

The parent compiles these files once and hands their code to every fresh interpreter, so a child opens nothing of
this repository. They use the standard library's built-in modules only (each import costs a child milliseconds), and
no ``from __future__``. Nothing here decides a verdict: what it reports is a claim, which the parent judges.
"""
