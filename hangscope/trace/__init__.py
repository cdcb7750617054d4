"""The trace: tables of what a job recorded, and one reader per kind of source."""
