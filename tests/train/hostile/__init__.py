"""Programs that a policy could write to cheat, to harm or to get out; and honest ones that must not suffer for it.

Their task is ``f(x) = 2x``. What must happen is said with each; :mod:`tests.train.hostile.trial` sees whether it does.
"""
