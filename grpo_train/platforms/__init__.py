"""The machine that a run starts on: what it has, and what that means for the keys of a config that are ``auto``.

Torch-free.

- :mod:`~grpo_train.platforms.facts` reads the machine;
- :mod:`~grpo_train.platforms.memory` estimates what a model takes;
- :mod:`~grpo_train.platforms.choices` turns both into values and reasons.
"""
