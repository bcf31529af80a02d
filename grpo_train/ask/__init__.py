"""Ask checkpoints a question and watch the completions as they are drawn.

A question of one's own is put into the prompt of the run, as its training problems are; a held-out problem is also
judged by the run's rewards. Several checkpoints get the same seeds, so that a difference is the weights'.
"""
