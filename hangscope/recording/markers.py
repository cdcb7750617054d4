"""What a recording rank leaves in its environment for the processes that inherit it."""

MONITOR_OF = "HANGSCOPE_INTERNAL_MONITOR_OF"
"""The run and attempt for which this process, or an ancestor, has already started a monitor."""
