"""Commands of ``grpo-tui`` that work on a box without the app.

They use the app's client, so its rules hold: a change has an idempotency key, ``--readonly`` refuses it, and everything
that a box sends passes one gate.

Exit codes: 0 done, 1 failed, 2 usage error, 130 ended by Ctrl-C; ``sync``, ``up``, ``get`` and ``put``: 3 done except
for what is named. ``doctor``: 0 all green, 1 something is yellow, 2 something is red. With ``--json``, stdout is one
JSON value, an error ``{"error": {"code", "message", "hint"}}`` too.
"""
