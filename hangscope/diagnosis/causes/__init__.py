"""From the graph to the ranks at fault."""
