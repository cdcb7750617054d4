"""The Textual application: timelines, live and post-mortem."""
