"""Entry point of ``python -m grpo_train.train``, one training process: see :mod:`grpo_train.train.worker`."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # before transformers is imported

from grpo_train.train.worker import main

if __name__ == "__main__":
    raise SystemExit(main())
