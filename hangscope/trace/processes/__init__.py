"""A look at a process of this machine from outside."""
