"""What the records say by themselves: how far ranks got, what fits and what does not."""
