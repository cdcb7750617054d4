"""Who belongs to a group that no source lists, or lists in its own way."""
