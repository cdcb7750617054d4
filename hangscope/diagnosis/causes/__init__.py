"""From the wait-for graph to the ranks at fault."""
