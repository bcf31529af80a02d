"""Where numbers go: JSON lines, TensorBoard, GPU samples."""
