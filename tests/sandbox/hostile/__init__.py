"""Programs that a policy could write to cheat, harm or escape, and honest programs that must keep working.

Their task is ``f(x) = 2x``. Each declares its expected result; :mod:`tests.sandbox.hostile.trial` checks it.
"""
