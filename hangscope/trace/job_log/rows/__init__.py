"""The kinds of lines that job logs have, one row each, and what each states."""
