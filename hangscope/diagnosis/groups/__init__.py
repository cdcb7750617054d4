"""Members of groups that no source lists, or that sources list in their own way."""
