"""Entry point of ``python -m grpo_train.evaluation.workers``: see :mod:`grpo_train.evaluation.workers.worker`."""

from grpo_train.run_dir.garbage import end_at_once, pause_collection, resume_collection

if __name__ == "__main__":
    pause_collection()
    from grpo_train.evaluation.workers.worker import main

    resume_collection()
    end_at_once(main())
