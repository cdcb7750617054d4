"""What can be known of a rank, in a form that ranks and sources have in common."""
