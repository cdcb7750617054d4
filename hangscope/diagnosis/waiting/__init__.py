"""Who waits for whom, since when, and whether the job stands still at all."""
