"""The torch engine's worker: a process for each device, which the trainer starts, feeds and outlives."""
