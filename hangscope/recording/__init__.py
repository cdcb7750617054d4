"""Inside the training process: hook, recorder, stacks, lifecycle, watcher."""
