"""The wait-for graph as data: places, who waits there, and for whom."""
