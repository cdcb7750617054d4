"""Ranks that ended: by their own doing, by others, too late, or only in a thread."""
