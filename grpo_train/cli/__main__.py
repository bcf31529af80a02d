"""``python -m grpo_train.cli``: what stages and sweeps start."""

from grpo_train.cli.commands import main

if __name__ == "__main__":
    main()
