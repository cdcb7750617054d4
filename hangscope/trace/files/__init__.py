"""What files are: their names, their first bytes, pickles that nobody vouches for."""
