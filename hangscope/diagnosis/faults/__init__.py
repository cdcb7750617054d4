"""The contest of explanations: who could be at fault, and what each of them leaves unexplained."""
