"""``python -m grpo_train.cli``, which stages and sweeps start."""

from grpo_train.cli import main

if __name__ == "__main__":
    main()
