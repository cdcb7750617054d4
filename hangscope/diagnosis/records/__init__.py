"""What the records alone show: how far ranks got, which operations match and which do not."""
