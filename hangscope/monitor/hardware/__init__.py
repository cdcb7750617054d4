"""What the machine's devices and links say about themselves, gathered when a hang is reported."""
