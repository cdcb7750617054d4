"""Which files there are, and each of them read whatever it is."""
