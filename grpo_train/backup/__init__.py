"""Backups of runs in an object store or on another disk, and the way back. Torch-free.

What must hold here; the tests in ``tests/backup`` attack each line:

1. *Complete means restorable.* A snapshot is complete only when every byte of it has been proven to be in the store. A
   kill, a cut or a lie of the store at any moment leaves the snapshots that were complete.
2. *Nothing is deleted that was not proven to be elsewhere in the same command*: read back and hashed, in a store that
   is not the same disk. No option goes round it.
3. *Damage here never becomes the backup there.* A checkpoint is hashed against its own ``MANIFEST.json`` while it is
   read; one that differs is named and left out.
4. *A restored run is the run*: same bytes, logs and evaluations. Resumed on another box under another root, it
   continues bit for bit.
5. *A backup never touches training*: its trouble never ends or delays the trainer.
6. *No secret* in argv, tmux, logs, events, manifests, the store or crash reports.
7. Durations come from monotonic clocks, order from sequence numbers, ages from the store's clock. A wrong wall clock
   may spoil a label, never a decision.
"""
