"""Who this process is, where the ranks meet, and how a job begins and ends."""
