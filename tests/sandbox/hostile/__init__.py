"""Programs that a policy could write to cheat, to harm or to get out; and honest ones that must not suffer for it.

Their task is ``f(x) = 2x``. Each states what must happen; :mod:`tests.sandbox.hostile.trial` checks it.
"""
