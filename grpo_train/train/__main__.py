"""Entry point of ``python -m grpo_train.train``, one training process: see :mod:`grpo_train.train.worker`."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # before transformers is imported

from grpo_train.config.environment import load_environment
from grpo_train.run_dir.garbage import end_at_once, pause_collection

if __name__ == "__main__":
    load_environment()
    pause_collection()
    from grpo_train.train.worker import main  # the libraries read HF_HOME and others when they are imported

    end_at_once(main())
