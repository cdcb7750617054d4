"""HangScope's own rings."""
