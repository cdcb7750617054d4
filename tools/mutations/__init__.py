"""Structure-aware mutations of everything HangScope reads, through its command line.

``python -m tools.mutations --count 20000 --seed 1`` prints what went wrong, with the number of each
case; ``--only N --keep DIR`` runs one of them again and keeps its files.
"""
