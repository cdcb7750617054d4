"""How ranks ended: by themselves, by others, too late, or only in one thread."""
