"""Lines of a log, freed of all that stands around them."""
