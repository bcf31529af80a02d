"""Reports: statistics of judged samples, result files, tables and comparisons. Torch-free."""
