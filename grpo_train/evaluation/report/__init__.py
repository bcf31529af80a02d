"""From judged samples to numbers, tables and comparisons. Torch-free."""
